"""The notebook's door: one call trains."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym

from jaxrl_async import agents
from jaxrl_async.checks import ConfigError
from jaxrl_async.config import EvaluationConfig, RunConfig
from jaxrl_async.envs import make
from jaxrl_async.overrides import replace
from jaxrl_async.recorders import Recorder
from jaxrl_async.runtime.acting import make_act
from jaxrl_async.runtime.evaluator import Evaluation
from jaxrl_async.runtime.parts import build_evaluator
from jaxrl_async.runtime.policy import Policy
from jaxrl_async.runtime.reporter import Callback
from jaxrl_async.runtime.trainer import Summary, Trainer


class RunResult(NamedTuple):
    """What is left of a run."""

    policy: Policy  # the best, or where none was scored, the last
    state: Any  # the agent's state after the last update
    summary: Summary
    history: list[dict[str, float]]  # one row per evaluation, as recorded


def train(
    agent: str | Any,
    env: str | Callable[[], gym.Env] | gym.Env,
    *,
    env_steps: int | None = None,
    seed: int = 0,
    evaluation_env: str | Callable[[], gym.Env] | None = None,
    env_options: Mapping[str, Any] | None = None,
    directory: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    recorder: Recorder | None = None,
    callbacks: Sequence[Callback] = (),
    **run: Any,
) -> RunResult:
    """Trains an agent on an env.

    ``train("sac", "Pendulum-v1", env_steps=20_000)`` shows its progress, writes a run directory and
    returns the best policy.

    Args:
      agent: a name of ``jaxrl_async.AGENTS``, or an agent's config such as ``SACConfig()``.
      env: a Gymnasium id, a function that makes an env, or an env made by ``gymnasium.make``.
      env_steps: budget over all actors; None: what the table names for the env, else 1,000,000.
      seed: the run's only seed.
      evaluation_env: scored in instead of ``env``.
      env_options: keywords of ``gymnasium.make``.
      directory: where the run writes; the same call resumes it, a larger ``env_steps`` goes on.
        None: a new one under ``runs/``.
      options: fields of the agent's config.
      recorder: instead of the console; the CSV files are written either way.
      callbacks: called on this thread after each row and each evaluation; may stop the run.
      **run: other fields of ``RunConfig``, nested mappings for its parts:
        ``learner={"batch_size": 128}``.

    Returns:
      The policy, the agent's state, the summary and the evaluations.

    Raises:
      ConfigError: a setting that cannot work; the message names it and the remedy.
    """
    changes: dict[str, Any] = {**run, "seed": seed, "agent": options or {}}
    changes["env_options"] = dict(env_options or {})
    if env_steps is not None:
        changes["env_steps"] = env_steps
    if directory is not None:
        changes["directory"] = os.fspath(directory)
    evaluation_factory = None
    if evaluation_env is not None:
        evaluation_factory = make.factory(evaluation_env)
        changes["evaluation.env"] = make.name(evaluation_env)
    trainer = Trainer(
        resolve(agent, make.name(env), changes),
        make_env=make.factory(env, env_options),
        make_evaluation_env=evaluation_factory,
        recorder=recorder,
        callbacks=callbacks,
    )
    summary = trainer.run()
    return RunResult(Policy.load(summary.directory), trainer.state, summary, trainer.history)


def evaluate_policy(
    run: str, episodes: int = 20, seed: int = 1_000_000, env: str | None = None
) -> Evaluation:
    """Scores the best policy of a run greedily.

    Args:
      run: the run's directory, or a policy file.
      episodes: how many are played.
      seed: of the env's resets.
      env: id of the env; None: the one that it was trained on.

    Raises:
      ConfigError: there is no policy, or no such env.
    """
    policy = Policy.load(run)
    config = RunConfig(
        env=env or policy.card["env"],
        agent=policy.agent.config,
        seed=seed,
        evaluation=EvaluationConfig(episodes=episodes),
    )
    options = {} if env else policy.card["env_options"]
    make_env = make.factory(config.env, options)
    with contextlib.ExitStack() as stack:
        evaluator = build_evaluator(
            config, policy.agent, make_act(policy.agent), policy.bounds, make_env, stack
        )
        assert evaluator is not None
        return evaluator.evaluate(policy.snapshot)


def resolve(agent: str | Any, env: str, changes: Mapping[str, Any]) -> RunConfig:
    """The config of a run of a named agent, or of an agent's config."""
    if isinstance(agent, str):
        return agents.run_config(agent, env, changes)
    names = [name for name, p in agents.AGENTS.items() if type(p.config) is type(agent)]
    if not names:
        raise ConfigError(
            f"agent = {agent!r}: use a name of {', '.join(agents.AGENTS)}, one of their configs,"
            " or Trainer(..., make_agent=YourAgent)"
        )
    # The same run-level values as by name; the agent's own are those of the config.
    return agents.run_config(names[-1], env, {**changes, "agent": replace(agent, changes["agent"])})
