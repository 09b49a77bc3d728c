"""An actor: it asks its policy, steps its envs, and hands over what it saw."""

import threading
from collections.abc import Callable
from typing import Any, Protocol, final

import gymnasium as gym
import numpy as np

from jaxrl_async.agents.agent import Agent
from jaxrl_async.config import RunConfig
from jaxrl_async.envs.spaces import ActionBounds, as_declared
from jaxrl_async.replay.nstep import NStepAccumulator
from jaxrl_async.runtime.acting import ActingPolicy, begin
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.seeding import Role, integer, sequence
from jaxrl_async.types import Chunk, Episode, Windows, map_leaves


class ExperienceSink(Protocol):
    """Where experience goes: a replay behind its rate limiter."""

    def add(self, chunk: Chunk) -> None:
        """Takes a chunk, or makes the actor wait."""
        ...


def ladder(exponent: float, first: int, count: int, total: int) -> Callable[[float], np.ndarray]:
    """Exploration per lane: explore ** (1 + exponent i / (N - 1)) for lane i of N.

    Horgan et al. 2018 (Ape-X), section 4.1, https://arxiv.org/abs/1803.00933, where the exponent
    is 7; finite also for N = 1.

    Args:
      exponent: how far the ladder reaches; 0: all lanes alike.
      first: number of the actor's first lane among all lanes.
      count: lanes of the actor.
      total: lanes of all actors, N.

    Returns:
      A function from the run's exploration to that of each of the actor's lanes, [count] float32.
    """
    powers = 1.0 + exponent * np.arange(first, first + count) / max(1, total - 1)
    return lambda explore: (explore**powers).astype(np.float32)


@final
class Actor:
    """One vector env and its open n-step windows. Only one thread may call it."""

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        *,
        index: int,
        env: gym.vector.VectorEnv,
        bounds: ActionBounds,
        policy: ActingPolicy,
        sink: ExperienceSink,
    ):
        lanes, actors = config.actor.envs_per_actor, config.actor.num_actors
        self._index, self._seed, self._chunk_steps = index, config.seed, config.actor.chunk_steps
        self._env, self._spec, self._bounds, self._policy = env, agent.spec, bounds, policy
        self._sink, self._agent = sink, agent
        self._explore = ladder(config.actor.ladder, index * lanes, lanes, lanes * actors)
        share = config.actor.random_steps // actors + (index < config.actor.random_steps % actors)
        self._random_steps = -(-share // lanes)  # whole vector steps
        self._accumulator = NStepAccumulator(lanes, config.replay.n_step, agent.config.discount)
        self._rng = np.random.Generator(np.random.PCG64(sequence(config.seed, Role.ACTOR, index)))
        self._steps = 0  # vector steps taken
        self._episodes = np.zeros(lanes, np.int64)  # begun, per lane
        self._return, self._length = np.zeros(lanes), np.zeros(lanes, np.int64)
        self._carry = agent.initial_carry(lanes)
        self._pending: list[Windows] = []
        self._finished: list[Episode] = []
        self._pending_steps = 0
        self._oldest: Snapshot | None = None  # that acted since the last chunk
        self._observation = self._reset(np.ones(lanes, bool))

    def step(self) -> None:
        """One step of every lane; hands over a chunk when one is full."""
        before, observation = self._carry, self._observation
        action = self._act()
        next_observation, reward, terminated, truncated, infos = self._env.step(
            self._bounds.to_env(action)
        )
        next_observation = as_declared(next_observation)
        self._pending.append(
            self._accumulator.add(
                observation, action, reward, terminated, truncated, next_observation, before
            )
        )
        self._steps += 1
        self._pending_steps += len(reward)
        self._return += reward
        self._length += 1
        ended = terminated | truncated
        self._observation = next_observation
        if ended.any():
            self._finish_episodes(ended, infos)
            self._observation = self._reset(ended)
        if self._steps % self._chunk_steps == 0:
            self._hand_over()

    def _act(self) -> np.ndarray:
        """Actions [E, ...] as agents give them."""
        if self._steps < self._random_steps:
            if self._spec.discrete:
                lanes, size = len(self._return), self._spec.action_size
                return self._rng.integers(0, size, lanes, np.int32)
            shape = (len(self._return), self._spec.action_size)
            return self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        action, self._carry, acted = self._policy(
            self._carry, self._observation, self._explore, self._steps
        )
        if self._oldest is None or acted.version < self._oldest.version:
            self._oldest = acted
        return action

    def _finish_episodes(self, ended: np.ndarray, infos: dict[str, Any]) -> None:
        success = infos.get("is_success", np.full(len(ended), np.nan))
        for lane in np.flatnonzero(ended):
            episode = Episode(
                float(self._return[lane]), int(self._length[lane]), float(success[lane])
            )
            self._finished.append(episode)
        self._return[ended], self._length[ended] = 0.0, 0

    def _reset(self, mask: np.ndarray) -> Any:
        """Begins an episode in each lane of ``mask``; the others stay as they are."""
        seeds = [
            integer(self._seed, Role.ENV, self._index, lane, 0, int(episode))
            for lane, episode in enumerate(self._episodes)
        ]
        self._episodes += mask
        # Gymnasium pops the mask out of the dict it is given: each reset gets a new one.
        observation, _ = self._env.reset(
            seed=seeds,  # pyright: ignore[reportArgumentType]  # vector envs take one a lane
            options={"reset_mask": mask},
        )
        self._carry = begin(self._carry, self._agent.initial_carry(len(mask)), mask)
        return as_declared(observation)

    def _hand_over(self) -> None:
        chunk = Chunk(
            windows=concatenate(self._pending),
            actor=self._index,
            incarnation=0,
            env_steps=self._pending_steps,
            episodes=tuple(self._finished),
            version=self._oldest.version if self._oldest else -1,
            version_env_steps=self._oldest.env_steps if self._oldest else 0,
        )
        self._pending, self._finished, self._pending_steps, self._oldest = [], [], 0, None
        self._sink.add(chunk)

    def run(self, stop: threading.Event) -> None:
        """Steps until ``stop`` is set or the sink takes no more; the body of an actor's thread."""
        while not stop.is_set():
            self.step()


def concatenate(windows: list[Windows]) -> Windows:
    """Several vector steps' windows as one message."""
    if len(windows) == 1:
        return windows[0]
    return map_leaves(lambda *parts: np.concatenate(parts), *windows)
