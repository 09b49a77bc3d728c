"""The shortest way through the library: train, look at the result, play.

    python examples/quickstart.py

Shows what one call of `train` does: it trains soft actor-critic on Pendulum-v1 with the settings
that `jaxrl_async.AGENTS` names for it, and leaves a run directory behind. The saved policy is then
loaded, as a program of its own would do it, and swings the pendulum up.

Expect a return of about -150 after 20,000 env steps, in about 4 minutes on 2 CPU cores: the row
pendulum-sac of `benchmarks/results/learning.jsonl` has three seeds. The pendulum starts anywhere,
so no policy gets to 0.
"""

import pathlib

import gymnasium as gym
import tyro

from jaxrl_async import Policy, train


def main(env_steps: int = 20_000, directory: str | None = None) -> float:
    """Trains SAC on Pendulum-v1, then plays one episode.

    Args:
      env_steps: budget of the training.
      directory: where the run writes; None: a new directory under runs/.

    Returns:
      The return of the episode.
    """
    result = train("sac", "Pendulum-v1", env_steps=env_steps, directory=directory)

    print(result.summary)
    for row in result.history:
        print(f"{row['env_steps']:>7,.0f} env steps: return {row['evaluation/return_mean']:8.1f}")
    episode_return = play(result.summary.directory)
    print(f"one episode of the best policy: return {episode_return:.1f}")
    return episode_return


def play(run: pathlib.Path) -> float:
    """The return of one episode of a run's best policy."""
    policy = Policy.load(run)
    env = gym.make(policy.card["env"])  # with render_mode="human" you can watch
    observation, _ = env.reset(seed=0)
    total, ended = 0.0, False
    while not ended:
        action = policy.act(observation)  # greedy, and scaled to the env's bounds
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        ended = terminated or truncated
    env.close()
    return total


if __name__ == "__main__":
    tyro.cli(main)
