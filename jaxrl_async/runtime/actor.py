"""An actor: it asks its policy, steps its envs, and hands over what it saw."""

import threading
import warnings
from collections.abc import Callable, Mapping
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
from jaxrl_async.types import Chunk, Episode, Transition, Windows, leaves, map_leaves


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
        n_step = 1 if config.replay.keeps_steps else config.replay.n_step
        self._accumulator = NStepAccumulator(lanes, n_step, agent.config.discount)
        self._rng = np.random.Generator(np.random.PCG64(sequence(config.seed, Role.ACTOR, index)))
        self.steps = 0  # vector steps taken
        self._incarnation = 0  # rises where steps of an open episode were lost
        self._episodes = np.zeros(lanes, np.int64)  # begun, per lane
        self._return, self._length = np.zeros(lanes), np.zeros(lanes, np.int64)
        self._carry = agent.initial_carry(lanes)
        self._pending: list[Windows] = []
        self._finished: list[Episode] = []
        self._pending_steps = 0
        self._oldest: Snapshot | None = None  # that acted since the last chunk
        self._observation: Any = None  # no episode has begun
        self._keeps_actions = config.lockstep  # for an exact resume
        self._played: list[list[np.ndarray]] = [[] for _ in range(lanes)]

    def step(self) -> None:
        """One step of every lane; hands over a chunk when one is full."""
        if self._observation is None:
            self._observation = self._reset(np.ones(len(self._return), bool))
        before, observation = self._carry, self._observation
        action = self._act()
        if self._keeps_actions:
            for lane, played in enumerate(self._played):
                played.append(action[lane])
        next_observation, reward, terminated, truncated, infos = self._env.step(
            self._bounds.to_env(action)
        )
        next_observation = as_declared(next_observation)
        self._pending.append(
            self._accumulator.add(
                observation, action, reward, terminated, truncated, next_observation, before
            )
        )
        self.steps += 1
        self._pending_steps += len(reward)
        self._return += reward
        self._length += 1
        ended = terminated | truncated
        self._observation = next_observation
        if ended.any():
            self._finish_episodes(ended, infos)
            self._observation = self._reset(ended)
        if self.steps % self._chunk_steps == 0:
            self._hand_over()

    def _act(self) -> np.ndarray:
        """Actions [E, ...] as agents give them."""
        if self.steps < self._random_steps:
            if self._spec.discrete:
                lanes, size = len(self._return), self._spec.action_size
                return self._rng.integers(0, size, lanes, np.int32)
            shape = (len(self._return), self._spec.action_size)
            return self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        action, self._carry, acted = self._policy(
            self._carry, self._observation, self._explore, self.steps
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

    def _seed_of(self, lane: int, episode: int) -> int:
        return integer(self._seed, Role.ENV, self._index, lane, 0, episode)

    def _reset(self, mask: np.ndarray) -> Any:
        """Begins an episode in each lane of ``mask``; the others stay as they are."""
        seeds: list[int | None] = [None] * len(mask)
        for lane in np.flatnonzero(mask).tolist():
            seeds[lane] = self._seed_of(lane, int(self._episodes[lane]))
        self._episodes += mask
        for lane in np.flatnonzero(mask):
            self._played[lane] = []
        # Gymnasium pops the mask out of the dict it is given: each reset gets a new one.
        observation, _ = self._env.reset(
            seed=seeds,  # pyright: ignore[reportArgumentType]  # vector envs take one a lane
            options={"reset_mask": mask},
        )
        self._carry = begin(self._carry, self._agent.initial_carry(len(mask)), mask)
        return as_declared(observation)

    # ---- saving and restoring ---------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Counts and generator; in lockstep also the open episodes, windows and chunk."""
        state: dict[str, Any] = {
            "steps": self.steps,
            "incarnation": self._incarnation,
            "episodes": self._episodes.copy(),
            "rng": self._rng.bit_generator.state,
        }
        if not self._keeps_actions or self._observation is None:
            return state
        oldest = self._oldest
        return state | {
            "open": {
                "played": [np.array(actions) for actions in self._played],
                "observation": leaves(self._observation),
                "carry": [np.asarray(leaf) for leaf in leaves(self._carry)],
                "return": self._return.copy(),
                "length": self._length.copy(),
                "windows": self._accumulator.state(),
                "pending": [leaves(windows) for windows in self._pending],
                "pending_steps": self._pending_steps,
                "finished": [list(episode) for episode in self._finished],
                "oldest": None if oldest is None else [oldest.version, oldest.env_steps],
            }
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where ``state()`` was taken.

        The actions of the open episodes are played into fresh envs. An env that then shows another
        observation than it did loses its episode, its open windows are dropped, and a warning says
        so. Without open episodes, as of threads, new ones begin.
        """
        self.steps = state["steps"]
        self._episodes[:] = state["episodes"]
        self._rng.bit_generator.state = state["rng"]
        self._incarnation = state["incarnation"]
        if "open" not in state or not self._keeps_actions:
            self._incarnation += 1
            return
        kept = state["open"]
        self._return[:], self._length[:] = kept["return"], kept["length"]
        self._carry = fill(self._carry, kept["carry"])
        self._observation = fill(self._spec.zeros(1), kept["observation"])
        self._played = [list(actions) for actions in kept["played"]]
        action = np.zeros((1, *self._spec.action.shape), self._spec.action.dtype)
        start = (self._observation, action, self._carry)
        self._accumulator.restore(kept["windows"], start, self._observation)
        example = Windows(
            Transition(*start[:2], 0, 0, self._observation, self._carry), np.zeros(0), np.zeros(0)
        )
        self._pending = [fill(example, windows) for windows in kept["pending"]]
        self._pending_steps = kept["pending_steps"]
        self._finished = [Episode(r, int(n), s) for r, n, s in kept["finished"]]
        if kept["oldest"] is not None:
            version, env_steps = kept["oldest"]
            self._oldest = Snapshot(version, env_steps, 0.0, None)
        self._replay_episodes()

    def _replay_episodes(self) -> None:
        """Brings fresh envs to where the open episodes stood."""
        lanes = len(self._return)
        seeds = [self._seed_of(lane, int(self._episodes[lane]) - 1) for lane in range(lanes)]
        found, _ = self._env.reset(
            seed=seeds,  # pyright: ignore[reportArgumentType]  # vector envs take one a lane
            options={"reset_mask": np.ones(lanes, bool)},
        )
        for step in range(max(len(actions) for actions in self._played)):
            playing = np.array([step < len(actions) for actions in self._played])
            action = np.zeros((lanes, *self._spec.action.shape), self._spec.action.dtype)
            for lane in np.flatnonzero(playing):
                action[lane] = self._played[lane][step]
            found, *_ = self._env.step(self._bounds.to_env(action), playing)  # pyright: ignore[reportCallIssue]  # ours
        moved = np.zeros(lanes, bool)
        for a, b in zip(leaves(as_declared(found)), leaves(self._observation), strict=True):
            moved |= (np.asarray(a) != np.asarray(b)).reshape(lanes, -1).any(axis=1)
        if moved.any():
            warnings.warn(
                f"actor {self._index}: env lanes {np.flatnonzero(moved).tolist()} did not come back"
                " where they stood, so their open episodes are lost and this resume is not exact",
                stacklevel=2,
            )
            self._accumulator.drop(moved)
            self._incarnation += 1
            self._return[moved], self._length[moved] = 0.0, 0
            self._observation = self._reset(moved)

    def _hand_over(self) -> None:
        chunk = Chunk(
            windows=concatenate(self._pending),
            actor=self._index,
            incarnation=self._incarnation,
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


def fill(example: Any, kept: list[np.ndarray]) -> Any:
    """The tree ``example`` with the leaves ``kept``."""
    found = iter(kept)
    return map_leaves(lambda _: next(found), example)


def concatenate(windows: list[Windows]) -> Windows:
    """Several vector steps' windows as one message."""
    if len(windows) == 1:
        return windows[0]
    return map_leaves(lambda *parts: np.concatenate(parts), *windows)
