"""DQN on CartPole-v1: how settings are changed.

    python examples/dqn_cartpole.py

Shows the two kinds of settings. `options` are fields of the agent's own config, here `DQNConfig`
with the dueling network. The other keywords are fields of `RunConfig` and its parts, here fewer
evaluations of more episodes. What is not named stays as `jaxrl_async.AGENTS` has it for the task.
At the end the evaluations are drawn as a learning curve.

The highest return is 500. `python benchmarks/examples.py dqn_cartpole` measures what 50,000 env
steps reach here, and how long they take.
"""

import tyro

from jaxrl_async import RunResult, train


def main(env_steps: int = 50_000, directory: str | None = None) -> RunResult:
    """Trains a dueling double DQN on CartPole-v1.

    Args:
      env_steps: budget of the training.
      directory: where the run writes; None: a new directory under runs/.

    Returns:
      The run's result.
    """
    result = train(
        "dqn",
        "CartPole-v1",
        env_steps=env_steps,
        directory=directory,
        options={"dueling": True},
        evaluation={"period": 10_000, "episodes": 20},
    )

    print(result.summary)
    for row in result.history:
        mean = row["evaluation/return_mean"]
        print(f"{row['env_steps']:>7,.0f} env steps {mean:6.1f} {'#' * round(mean / 10)}")
    return result


if __name__ == "__main__":
    tyro.cli(main)
