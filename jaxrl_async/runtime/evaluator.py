"""Scores one pinned version of the policy, greedily, in envs of its own."""

import collections
import threading
import time
from typing import Any, NamedTuple, final

import jax
import numpy as np

from jaxrl_async.agents.agent import Agent
from jaxrl_async.config import RunConfig
from jaxrl_async.envs.spaces import ActionBounds, as_declared
from jaxrl_async.envs.vector import SerialVectorEnv
from jaxrl_async.replay.rate_limiter import Closed
from jaxrl_async.runtime.acting import Act, begin
from jaxrl_async.runtime.params import WAIT_SECONDS, Snapshot
from jaxrl_async.seeding import Role, integer

MAX_LANES = 16
"""Episodes played side by side, with one call of the policy for all."""
MAX_WAITING = 16
"""Snapshots that wait for their turn; beyond, the oldest is dropped and counted."""


def lanes_for(episodes: int) -> int:
    """Lanes that so many episodes are played on."""
    return min(episodes, MAX_LANES)


class Evaluation(NamedTuple):
    """The episodes of one version that ended in time."""

    snapshot: Snapshot
    returns: np.ndarray  # [n] undiscounted
    lengths: np.ndarray  # [n]
    successes: np.ndarray  # [n] NaN where the env does not say

    @property
    def score(self) -> float:
        """Mean return; NaN if no episode ended."""
        return float(np.mean(self.returns)) if len(self.returns) else float("nan")

    def values(self) -> dict[str, float]:
        """What recorders get."""
        n = len(self.returns)
        values = {
            "return_mean": np.mean(self.returns) if n else np.nan,
            "return_std": np.std(self.returns) if n else np.nan,
            "return_min": np.min(self.returns) if n else np.nan,
            "return_max": np.max(self.returns) if n else np.nan,
            "length_mean": np.mean(self.lengths) if n else np.nan,
            "success_mean": np.mean(self.successes) if n else np.nan,
            "episodes": n,
            "version": self.snapshot.version,
        }
        return {f"evaluation/{name}": float(value) for name, value in values.items()}


@final
class Evaluator:
    """Plays whole episodes of a snapshot.

    Episode j of version v always starts from the same seed, whoever plays it and when, and always
    on lane j mod lanes: which episodes count does not depend on how long they are.

    In lockstep ``evaluate`` is called inline. In threads one thread calls ``run``, and the main
    thread asks by ``request`` and collects by ``results``.
    """

    def __init__(
        self,
        config: RunConfig,
        agent: Agent,
        act: Act,
        env: SerialVectorEnv,
        bounds: ActionBounds,
        placement: jax.sharding.Sharding,
    ):
        self._config, self._seed = config.evaluation, config.seed
        self._agent, self._act, self._env, self._bounds = agent, act, env, bounds
        self._placement = placement
        self._key = jax.device_put(jax.random.key(0), placement)  # greedy actions draw nothing
        self._changed = threading.Condition()
        self._waiting: collections.deque[Snapshot] = collections.deque()
        self._results: list[Evaluation] = []
        self.unfinished = 0
        """Snapshots asked for and not yet scored."""
        self.dropped = 0
        """Snapshots that were never scored because too many waited."""

    # ---- playing ----------------------------------------------------------------------------

    def evaluate(self, snapshot: Snapshot, stop: threading.Event | None = None) -> Evaluation:
        """Plays and scores; what has not ended within the time limit is not reported.

        Raises:
          Closed: ``stop`` was set meanwhile.
        """
        params = jax.device_put(snapshot.params, self._placement)
        lanes, episodes = self._env.num_envs, self._config.episodes
        deadline = time.monotonic() + self._config.time_limit
        episode = np.arange(lanes)  # which one each lane plays
        total, length = np.zeros(lanes), np.zeros(lanes, np.int64)
        greedy = np.zeros(lanes, np.float32)
        found: dict[int, tuple[float, int, float]] = {}
        carry = self._agent.initial_carry(lanes)
        carry, observation = self._begin(snapshot, np.ones(lanes, bool), episode, carry)
        step = 0
        while (episode < episodes).any() and time.monotonic() < deadline:
            if stop is not None and stop.is_set():
                raise Closed
            action, carry = self._act(params, carry, observation, self._key, np.int32(step), greedy)
            playing = episode < episodes
            observation, reward, terminated, truncated, infos = self._env.step(
                self._bounds.to_env(np.asarray(action)), playing
            )
            observation = as_declared(observation)
            step += 1
            total += reward
            length += playing
            is_cut = length >= self._config.max_episode_steps
            ended = playing & (terminated | truncated | is_cut)
            for lane in np.flatnonzero(ended):
                success = float(infos["is_success"][lane])
                found[int(episode[lane])] = (float(total[lane]), int(length[lane]), success)
            if ended.any():
                episode[ended] += lanes
                total[ended], length[ended] = 0.0, 0
                again = ended & (episode < episodes)
                carry, observation = self._begin(snapshot, again, episode, carry)
        rows = [found[i] for i in sorted(found)]
        returns, lengths, successes = np.array(rows).reshape(-1, 3).T
        return Evaluation(snapshot, returns, lengths, successes)

    def _begin(self, snapshot: Snapshot, mask: np.ndarray, episode: np.ndarray, carry: Any):
        """Resets the lanes in ``mask`` to their episodes."""
        seeds: list[int | None] = [None] * len(mask)
        for lane in np.flatnonzero(mask).tolist():
            number = int(episode[lane])
            seeds[lane] = integer(self._seed, Role.EVALUATION, snapshot.version, number)
        observation, _ = self._env.reset(seed=seeds, options={"reset_mask": mask})
        return begin(carry, self._agent.initial_carry(len(mask)), mask), as_declared(observation)

    # ---- in a thread ------------------------------------------------------------------------

    def request(self, snapshot: Snapshot) -> None:
        """Asks for a snapshot with parameters of its own to be scored; returns at once."""
        with self._changed:
            if len(self._waiting) == MAX_WAITING:
                self._waiting.popleft()
                self.dropped += 1
                self.unfinished -= 1
            self._waiting.append(snapshot)
            self.unfinished += 1
            self._changed.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Scores what is asked for, in order, until ``stop``; the body of its thread."""
        while not stop.is_set():
            with self._changed:
                if not self._changed.wait_for(lambda: self._waiting, WAIT_SECONDS):
                    continue
                snapshot = self._waiting.popleft()
            evaluation = self.evaluate(snapshot, stop)
            with self._changed:
                self._results.append(evaluation)
                self.unfinished -= 1
                self._changed.notify_all()

    def results(self) -> list[Evaluation]:
        """Those finished since the last call, in order of version."""
        with self._changed:
            found, self._results = self._results, []
            return found

    def wait(self, timeout: float) -> bool:
        """Whether all that was asked for is finished, after at most ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.unfinished == 0, timeout)
