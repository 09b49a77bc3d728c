"""The parts of a run, built from its config; who drives them is another matter."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import gymnasium as gym
import jax

from jaxrl_async.agents.agent import Agent
from jaxrl_async.checks import ConfigError
from jaxrl_async.config import RunConfig
from jaxrl_async.envs import spaces
from jaxrl_async.envs.make import EnvFactory
from jaxrl_async.envs.spaces import ActionBounds
from jaxrl_async.envs.stepper import mode_of
from jaxrl_async.envs.vector import SerialVectorEnv
from jaxrl_async.replay.rate_limiter import RateLimiter
from jaxrl_async.replay.replay import Replay
from jaxrl_async.runtime.acting import Act, LocalPolicy, make_act
from jaxrl_async.runtime.actor import Actor
from jaxrl_async.runtime.evaluator import Evaluator, lanes_for
from jaxrl_async.runtime.experience import build_dataset, build_replay, source_of
from jaxrl_async.runtime.learner import Learner, make_mesh
from jaxrl_async.runtime.metrics import Blocked, Counters
from jaxrl_async.runtime.params import WAIT_SECONDS, ParamStore
from jaxrl_async.runtime.prefetch import Prefetcher
from jaxrl_async.seeding import Role, integer
from jaxrl_async.types import Chunk, EnvSpec

AgentFactory: TypeAlias = Callable[[Any, EnvSpec], Agent]
"""``(config, spec) -> agent``: an agent's class."""


@final
class Sink:
    """The replay behind its rate limiter, with counters. Thread-safe."""

    def __init__(
        self,
        replay: Replay,
        limiter: RateLimiter,
        counters: Counters,
        updates: Callable[[], int],
    ):
        self._replay, self._limiter, self._counters = replay, limiter, counters
        self._updates = updates
        self._storing = threading.Lock()
        self.blocked = Blocked()
        """Seconds that actors waited here, summed over them."""

    def quiet(self) -> threading.Lock:
        """A lock under which every stored chunk is counted and every counted one stored."""
        return self._storing

    def add(self, chunk: Chunk) -> None:
        """Stores and counts a chunk, as soon as the limiter lets it through.

        Raises:
          Closed: the budget is spent or the run stops; the chunk is not stored.
        """
        is_admitted = False
        while not is_admitted:
            start = time.monotonic()
            is_admitted = self._limiter.wait_to_insert(chunk.env_steps, WAIT_SECONDS)
            self.blocked.add(time.monotonic() - start)
        with self._storing:
            self._replay.add(chunk)
            self._limiter.inserted(chunk.env_steps)
        self._counters.add(chunk, self._updates(), self._limiter.env_steps)


@final
@dataclasses.dataclass(frozen=True)
class Parts:
    """All that acts, keeps, learns and scores."""

    agent: Agent
    bounds: ActionBounds
    replay: Replay
    dataset: Replay | None  # recorded experience that is mixed in
    limiter: RateLimiter
    counters: Counters
    sink: Sink
    act: Act
    learner: Learner
    prefetcher: Prefetcher
    store: ParamStore
    actors: list[Actor]
    evaluator: Evaluator | None  # None: never scored


def build(
    config: RunConfig,
    make_agent: AgentFactory,
    make_env: EnvFactory,
    make_evaluation_env: EnvFactory,
    stack: contextlib.ExitStack,
) -> Parts:
    """Builds the parts; ``stack`` closes the envs.

    Raises:
      ConfigError: the env's spaces, the devices or the rate limiter refuse the config.
    """
    groups = config.actor.groups
    lanes, count = config.actor.envs_per_actor // groups, config.actor.num_actors * groups
    envs = [training_env(make_env, lanes, stack) for _ in range(count)]
    spec, bounds = describe(envs)
    agent = make_agent(config.agent, spec)
    act, placement = make_act(agent), acting_placement(config)
    replay = build_replay(config, agent, lambda: serial_env(make_env, 1, stack).envs[0])
    recorded = build_dataset(config, agent, bounds)
    limiter, counters = build_limiter(config), Counters()
    learner = build_learner(config, agent)
    store = ParamStore(placement)
    sink = Sink(replay, limiter, counters, lambda: learner.done)
    lag = config.actor.max_policy_lag
    oldest = None if lag is None else lambda: learner.done - lag
    return Parts(
        agent=agent,
        bounds=bounds,
        replay=replay,
        dataset=recorded,
        limiter=limiter,
        counters=counters,
        sink=sink,
        act=act,
        learner=learner,
        prefetcher=Prefetcher(
            source_of(config, replay, recorded),
            limiter,
            batch_size=config.learner.batch_size,
            updates_per_call=config.learner.updates_per_call,
            sharding=learner.batch_sharding,
        ),
        store=store,
        actors=[
            Actor(
                config,
                agent,
                index=index,
                actors=count,
                env=env,
                bounds=bounds,
                policy=LocalPolicy(act, store, actor_key(config, index, placement), oldest),
                sink=sink,
            )
            for index, env in enumerate(envs)
        ],
        evaluator=build_evaluator(config, agent, act, bounds, make_evaluation_env, stack),
    )


def describe(envs: Sequence[gym.vector.VectorEnv]) -> tuple[EnvSpec, ActionBounds]:
    """What all envs are, which must be the same of each, and no env twice."""
    lanes = [lane for env in envs for lane in getattr(env, "envs", [env])]
    if len({id(lane.unwrapped) for lane in lanes}) < len(lanes):
        raise ConfigError(
            "env = a function that gives the same env twice: make a new one each time"
        )
    found = [spaces.describe(*spaces_of(lane)) for lane in lanes]
    for other in found:
        if other != found[0]:
            raise ConfigError(f"env = one with {found[0]}, another with {other}: make all alike")
    return found[0]


def spaces_of(env: gym.Env | gym.vector.VectorEnv) -> tuple[gym.Space, gym.Space]:
    """Of one observation and of one action."""
    if isinstance(env, gym.vector.VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def training_env(
    make_env: EnvFactory, lanes: int, stack: contextlib.ExitStack
) -> gym.vector.VectorEnv:
    """The envs of one actor, which ``stack`` closes: what ``make_env`` makes so often, in turn.

    Raises:
      ConfigError: it makes a vector env of another size, or one that does not say how it resets.
    """
    first = make_env()
    if not isinstance(first, gym.vector.VectorEnv):
        made = [first]
        return serial_env(lambda: made.pop() if made else make_env(), lanes, stack)
    close_at_end(first, stack)
    mode_of(first)
    if first.num_envs != lanes:
        raise ConfigError(
            f"env = a vector env of {first.num_envs}: each actor steps {lanes} together; set"
            f" actor.envs_per_actor (twice that with double_buffer) to {first.num_envs}"
        )
    return first


def serial_env(make_env: EnvFactory, lanes: int, stack: contextlib.ExitStack) -> SerialVectorEnv:
    """Single envs as one, which ``stack`` closes.

    Raises:
      ConfigError: ``make_env`` makes vector envs.
    """
    env = SerialVectorEnv(make_env, lanes)
    close_at_end(env, stack)
    if any(isinstance(lane, gym.vector.VectorEnv) for lane in env.envs):
        raise ConfigError(
            "env = a function that makes vector envs: evaluation and hindsight need single ones;"
            " set evaluation.env to an id, give a function that makes one to evaluate in, or set"
            " evaluation.period to 0, and use hindsight with single envs only"
        )
    return env


def close_at_end(env: gym.vector.VectorEnv, stack: contextlib.ExitStack) -> None:
    """Has ``stack`` close it; an error of that never hides the one that it closes for."""

    def close(kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            env.close()
        except Exception as failed:
            if error is None:
                raise
            error.add_note(f"then closing an env failed: {failed!r}")

    stack.push(close)


def acting_placement(config: RunConfig) -> jax.sharding.Sharding:
    """The first device of the platform that actions are computed on."""
    try:
        device = jax.local_devices(backend=config.actor.device)[0]
    except RuntimeError as error:
        raise ConfigError(
            f"actor.device = {config.actor.device!r}: JAX has no such platform here; use 'cpu'"
        ) from error
    return jax.sharding.SingleDeviceSharding(device)


def actor_key(config: RunConfig, index: int, placement: jax.sharding.Sharding) -> jax.Array:
    """The key of one actor's exploration, on the device that its actions are computed on."""
    seed = integer(config.seed, Role.ACTOR_NOISE, index)
    return jax.device_put(jax.random.key(seed), placement)


def build_limiter(config: RunConfig) -> RateLimiter:
    """The rate limiter of the run's ratio; in lockstep nobody waits, so its slack is its own."""
    return RateLimiter(
        config.learner.updates_per_env_step,
        warmup_steps=config.learner.warmup_steps,
        slack=None if config.lockstep else config.learner.slack,
        max_insert=config.actor.envs_per_actor // config.actor.groups * config.actor.chunk_steps,
        max_update=config.learner.updates_per_call,
        budget=config.env_steps,
    )


def build_learner(config: RunConfig, agent: Agent) -> Learner:
    """The learner with a fresh state."""
    initial = jax.jit(agent.init)(jax.random.key(integer(config.seed, Role.AGENT)))
    return Learner(
        agent,
        initial,
        batch_size=config.learner.batch_size,
        updates_per_call=config.learner.updates_per_call,
        key=jax.random.key(integer(config.seed, Role.LEARNER)),
        mesh=make_mesh(config.learner.devices),
    )


def build_evaluator(
    config: RunConfig,
    agent: Agent,
    act: Act,
    bounds: ActionBounds,
    make_env: EnvFactory,
    stack: contextlib.ExitStack,
) -> Evaluator | None:
    """The evaluator with envs of its own; None where the run is never scored."""
    if config.evaluation.period == 0:
        return None
    env = serial_env(make_env, lanes_for(config.evaluation.episodes), stack)
    spec, _ = describe([env])
    if spec != agent.spec:
        raise ConfigError(
            f"evaluation.env = {config.evaluation.env!r}: its spaces are {spec}, the training env's"
            f" {agent.spec}; use an env with the same spaces"
        )
    return Evaluator(config, agent, act, env, bounds, acting_placement(config))
