"""The replay of a run, built from its config: how experience is kept, and how it is drawn."""

from typing import Any

from jaxrl_async.agents.agent import Agent
from jaxrl_async.checks import ConfigError
from jaxrl_async.config import RunConfig
from jaxrl_async.envs.make import EnvFactory
from jaxrl_async.envs.spaces import ActionBounds
from jaxrl_async.replay import dataset
from jaxrl_async.replay.frames import FrameStore
from jaxrl_async.replay.hindsight import HindsightStore
from jaxrl_async.replay.mixed import Mixed
from jaxrl_async.replay.prioritized import Prioritized
from jaxrl_async.replay.replay import Replay, Source
from jaxrl_async.replay.transitions import Store, TransitionStore
from jaxrl_async.replay.uniform import Sampler, Uniform
from jaxrl_async.runtime.learner import layout_of
from jaxrl_async.seeding import Role, sequence
from jaxrl_async.types import leaves


def build_replay(config: RunConfig, agent: Agent, make_env: EnvFactory) -> Replay:
    """The run's own experience; ``make_env`` makes an env that is only asked for rewards."""
    seed = sequence(config.seed, Role.REPLAY)
    return Replay(build_store(config, agent, make_env), build_sampler(config), seed)


def build_store(config: RunConfig, agent: Agent, make_env: EnvFactory) -> Store:
    """How experience is kept."""
    c, discount = config.replay, agent.config.discount
    if not c.keeps_steps:
        return TransitionStore(c.capacity, layout_of(agent), c.path)
    if leaves(agent.initial_carry(1)):
        raise ConfigError(
            "replay = frame_stack or hindsight with an agent that remembers: its memory before each"
            " step is not kept there; use neither"
        )
    if c.frame_stack is not None:
        return FrameStore(
            c.capacity,
            agent.spec,
            stack=c.frame_stack,
            n_step=c.n_step,
            discount=discount,
            path=c.path,
        )
    assert c.hindsight is not None
    env: Any = make_env().unwrapped
    if not hasattr(env, "compute_reward"):
        raise ConfigError(
            f"replay.hindsight = {c.hindsight!r}: the env has no compute_reward; use a"
            " goal-conditioned one"
        )
    return HindsightStore(
        c.capacity,
        agent.spec,
        strategy=c.hindsight,
        share=c.hindsight_share,
        discount=discount,
        compute_reward=env.compute_reward,
        compute_terminated=getattr(env, "compute_terminated", None),
        path=c.path,
    )


def build_dataset(config: RunConfig, agent: Agent, bounds: ActionBounds) -> Replay | None:
    """Recorded experience that is mixed in; None where there is none."""
    if config.replay.dataset is None:
        return None
    return dataset.load(
        config.replay.dataset,
        agent.spec,
        layout_of(agent),
        bounds.from_env,
        n_step=config.replay.n_step,
        discount=agent.config.discount,
        seed=sequence(config.seed, Role.REPLAY, 1),
    )


def source_of(config: RunConfig, replay: Replay, recorded: Replay | None) -> Source:
    """What batches are drawn from."""
    return replay if recorded is None else Mixed(replay, recorded, config.replay.dataset_share)


def build_sampler(config: RunConfig) -> Sampler:
    """Uniform draws, or prioritized ones whose beta moves over the updates of the budget."""
    c, learner = config.replay, config.learner
    if c.priority_exponent == 0:
        return Uniform()
    ratio = learner.updates_per_env_step or 1.0  # free-running: as if it were held at 1
    updates = max(1.0, (config.env_steps - learner.warmup_steps) * ratio - 1.0)

    def importance(batches: int) -> float:
        progress = min(1.0, batches / updates)
        end = c.importance_exponent_end
        return c.importance_exponent + progress * (end - c.importance_exponent)

    return Prioritized(
        c.capacity, exponent=c.priority_exponent, importance=importance, norm=c.importance_norm
    )
