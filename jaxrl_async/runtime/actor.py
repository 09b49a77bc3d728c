"""An actor: it asks its policy, steps its envs, and hands over what it saw."""

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import gymnasium as gym
import numpy as np

from jaxrl_async.agents.agent import Agent
from jaxrl_async.config import RunConfig
from jaxrl_async.envs.spaces import ActionBounds, as_declared
from jaxrl_async.envs.stepper import Stepper
from jaxrl_async.replay.nstep import NStepAccumulator
from jaxrl_async.runtime.acting import Acted, ActingPolicy, begin, ladder
from jaxrl_async.runtime.episodes import Episodes
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.seeding import Role, integer, sequence
from jaxrl_async.types import Chunk, Transition, Windows, leaves, map_leaves


class ExperienceSink(Protocol):
    """Where experience goes: a replay behind its rate limiter."""

    def add(self, chunk: Chunk) -> None:
        """Takes a chunk, or makes the actor wait."""
        ...


@final
class Actor:
    """One vector env and its open n-step windows. Only one thread may call it."""

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        *,
        index: int,
        actors: int,
        env: gym.vector.VectorEnv,
        bounds: ActionBounds,
        policy: ActingPolicy,
        sink: ExperienceSink,
    ):
        """Takes its parts.

        Args:
          config: of the run.
          agent: that acts.
          index: number of this actor among all.
          actors: how many there are, each with as many envs as ``env`` has.
          env: of any autoreset mode.
          bounds: of its actions.
          policy: asked for actions.
          sink: where experience goes.
        """
        self.lanes = lanes = env.num_envs
        self._index, self._seed, self._chunk_steps = index, config.seed, config.actor.chunk_steps
        self._env, self._stepper = env, Stepper(env, self._next_seed)
        self._spec, self._bounds, self._policy = agent.spec, bounds, policy
        self._sink, self._agent = sink, agent
        self._explore = ladder(config.actor.ladder, index * lanes, lanes, lanes * actors)
        share = config.actor.random_steps // actors + (index < config.actor.random_steps % actors)
        self._random_steps = -(-share // lanes)  # whole vector steps
        n_step = 1 if config.replay.keeps_steps else config.replay.n_step
        self._accumulator = NStepAccumulator(lanes, n_step, agent.config.discount)
        self._rng = np.random.Generator(np.random.PCG64(sequence(config.seed, Role.ACTOR, index)))
        self.steps = 0  # vector steps taken
        self._incarnation = 0  # rises where steps of an open episode were lost
        self._keeps_actions = config.lockstep  # for an exact resume
        self._episodes = Episodes(lanes, keeps_actions=config.lockstep)
        self._carry = agent.initial_carry(lanes)
        self._pending: list[Windows] = []
        self._pending_steps = 0
        self._oldest: Snapshot | None = None  # that acted since the last chunk
        self._observation: Any = None  # no episode has begun
        self._asked: Callable[[], Acted] | None = None  # what the step under way waits for

    def step(self) -> None:
        """One step of every lane; hands over a chunk when one is full."""
        self.begin_step()
        self.finish_step()

    def begin_step(self) -> None:
        """Asks for actions, which may be computed while other envs are stepped."""
        if self._observation is None:
            self._reset(np.ones(self.lanes, bool))
        if self.steps < self._random_steps:
            self._asked = None
        else:
            self._asked = self._policy.ask(
                self._carry, self._observation, self._explore, self.steps
            )

    def finish_step(self) -> None:
        """Steps the envs with the actions asked for."""
        before, observation = self._carry, self._observation
        action = self._act()
        step = self._stepper.step(self._bounds.to_env(action))
        self._pending.append(
            self._accumulator.add(
                observation,
                action,
                step.reward,
                step.terminated,
                step.truncated,
                step.next_observation,
                before,
                step.stepped,
            )
        )
        self.steps += 1
        self._pending_steps += int(np.count_nonzero(step.stepped))
        self._episodes.add(action, step)
        self._observation = step.observation
        if step.began.any():
            self._begin_carry(step.began)
        if self.steps % self._chunk_steps == 0:
            self._hand_over()

    def _act(self) -> np.ndarray:
        """Actions [E, ...] as agents give them."""
        if self._asked is None:
            if self._spec.discrete:
                return self._rng.integers(0, self._spec.action_size, self.lanes, np.int32)
            shape = (self.lanes, self._spec.action_size)
            return self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        action, self._carry, acted = self._asked()
        if self._oldest is None or acted.version < self._oldest.version:
            self._oldest = acted
        return action

    def _seed_of(self, lane: int, episode: int) -> int:
        return integer(self._seed, Role.ENV, self._index, lane, 0, episode)

    def _next_seed(self, lane: int) -> int:
        return self._seed_of(lane, int(self._episodes.begun[lane]))

    def _reset(self, mask: np.ndarray) -> None:
        """Begins an episode in each lane of ``mask``."""
        self._observation = self._stepper.reset(mask)
        self._episodes.begin(mask)
        self._begin_carry(mask)

    def _begin_carry(self, mask: np.ndarray) -> None:
        self._carry = begin(self._carry, self._agent.initial_carry(self.lanes), mask)

    # ---- saving and restoring ---------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Counts and generator; in lockstep also the open episodes, windows and chunk."""
        state: dict[str, Any] = {
            "steps": self.steps,
            "incarnation": self._incarnation,
            "episodes": self._episodes.begun.copy(),
            "rng": self._rng.bit_generator.state,
        }
        if not self._keeps_actions or self._observation is None:
            return state
        oldest = self._oldest
        return state | {
            "open": self._episodes.state()
            | {
                "observation": leaves(self._observation),
                "carry": [np.asarray(leaf) for leaf in leaves(self._carry)],
                "windows": self._accumulator.state(),
                "pending": [leaves(windows) for windows in self._pending],
                "pending_steps": self._pending_steps,
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
        self._episodes.begun[:] = state["episodes"]
        self._rng.bit_generator.state = state["rng"]
        self._incarnation = state["incarnation"]
        if "open" not in state or not self._keeps_actions:
            self._incarnation += 1
            return
        kept = state["open"]
        self._episodes.restore(kept)
        self._carry = fill(self._carry, kept["carry"])
        self._observation = fill(self._spec.zeros(1), kept["observation"])
        action = np.zeros((1, *self._spec.action.shape), self._spec.action.dtype)
        start = (self._observation, action, self._carry)
        self._accumulator.restore(kept["windows"], start, self._observation)
        example = Windows(
            Transition(*start[:2], 0, 0, self._observation, self._carry), np.zeros(0), np.zeros(0)
        )
        self._pending = [fill(example, windows) for windows in kept["pending"]]
        self._pending_steps = kept["pending_steps"]
        if kept["oldest"] is not None:
            version, env_steps = kept["oldest"]
            self._oldest = Snapshot(version, env_steps, 0.0, None)
        self._replay_episodes()

    def _replay_episodes(self) -> None:
        """Brings fresh envs to where the open episodes stood."""
        moved = np.ones(self.lanes, bool)  # those that cannot be brought there
        if getattr(self._env, "steps_by_mask", False):
            moved = differs(self._play(), self._observation)
        if moved.any():
            warnings.warn(
                f"actor {self._index}: env lanes {np.flatnonzero(moved).tolist()} did not come back"
                " where they stood, so their open episodes are lost and this resume is not exact",
                stacklevel=2,
            )
            self._accumulator.drop(moved)
            self._incarnation += 1
            self._reset(moved)

    def _play(self) -> Any:
        """Observations [E, *obs] after the actions of the open episodes."""
        seeds = [
            self._seed_of(lane, int(self._episodes.begun[lane]) - 1) for lane in range(self.lanes)
        ]
        found, _ = self._env.reset(
            seed=seeds,  # pyright: ignore[reportArgumentType]  # vector envs take one a lane
            options={"reset_mask": np.ones(self.lanes, bool)},
        )
        for step in range(max(len(actions) for actions in self._episodes.played)):
            playing = np.array([step < len(actions) for actions in self._episodes.played])
            action = np.zeros((self.lanes, *self._spec.action.shape), self._spec.action.dtype)
            for lane in np.flatnonzero(playing):
                action[lane] = self._episodes.played[lane][step]
            found, *_ = self._env.step(self._bounds.to_env(action), playing)  # pyright: ignore[reportCallIssue]  # ours
        return as_declared(found)

    def _hand_over(self) -> None:
        if self._pending_steps == 0:  # all lanes were only reset
            self._pending = []
            return
        chunk = Chunk(
            windows=concatenate(self._pending),
            actor=self._index,
            incarnation=self._incarnation,
            env_steps=self._pending_steps,
            episodes=self._episodes.take(),
            version=self._oldest.version if self._oldest else -1,
            version_env_steps=self._oldest.env_steps if self._oldest else 0,
        )
        self._pending, self._pending_steps, self._oldest = [], 0, None
        self._sink.add(chunk)


def run(actors: Sequence[Actor], stop: threading.Event) -> None:
    """Steps until ``stop`` is set or a sink takes no more; the body of an actor's thread.

    With two actors, the policy computes for one while the envs of the other are stepped.
    """
    for actor in actors:
        actor.begin_step()
    while not stop.is_set():
        for actor in actors:
            actor.finish_step()
            actor.begin_step()


def differs(tree: Any, other: Any) -> np.ndarray:
    """Lanes [E] in which two trees [E, ...] are not the same."""
    wrong = [
        (np.asarray(a) != np.asarray(b)).reshape(len(a), -1).any(axis=1)
        for a, b in zip(leaves(tree), leaves(other), strict=True)
    ]
    return np.logical_or.reduce(wrong)


def fill(example: Any, kept: list[np.ndarray]) -> Any:
    """The tree ``example`` with the leaves ``kept``."""
    found = iter(kept)
    return map_leaves(lambda _: next(found), example)


def concatenate(windows: list[Windows]) -> Windows:
    """Several vector steps' windows as one message."""
    if len(windows) == 1:
        return windows[0]
    return map_leaves(lambda *parts: np.concatenate(parts), *windows)
