"""The Trainer: it builds the parts of a run, drives them, and says how it went."""

import contextlib
import math
import pathlib
from typing import Any, NamedTuple, final

from jaxrl_async.agents import agent_of
from jaxrl_async.config import RunConfig, to_json
from jaxrl_async.envs import make
from jaxrl_async.envs.make import EnvFactory
from jaxrl_async.recorders import ConsoleRecorder, CSVRecorder, MultiRecorder, Recorder
from jaxrl_async.runtime.directory import RunDirectory
from jaxrl_async.runtime.evaluator import Evaluation
from jaxrl_async.runtime.metrics import Clock
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.runtime.parts import AgentFactory, build
from jaxrl_async.runtime.policy import BEST, LAST

EXPLORE_PERIOD = 1_000
"""Env steps after which the exploration schedule reaches the actors where no update does."""
TIMING_SECONDS = 1.0
"""Between two rows of the stream ``timing``."""


class Summary(NamedTuple):
    """How a run ended."""

    agent: str
    env: str
    reason: str
    env_steps: int
    updates: int
    episodes: int
    seconds: float
    score: float  # mean return of the last evaluation; NaN without one
    best_score: float
    best_env_steps: int
    directory: pathlib.Path

    def __str__(self) -> str:
        """Two lines for people."""
        return (
            f"{self.agent} on {self.env}: return {self.score:,.1f} after {self.env_steps:,} env"
            f" steps, {self.updates:,} updates and {self.episodes:,} episodes in"
            f" {self.seconds:,.0f} s ({self.reason})\n"
            f"best return {self.best_score:,.1f} at {self.best_env_steps:,} env steps;"
            f" the run lies in {self.directory}"
        )


@final
class Trainer:
    """One run, in lockstep: one thread, and the same bits each time."""

    def __init__(
        self,
        config: RunConfig,
        *,
        make_agent: AgentFactory | None = None,
        make_env: EnvFactory | None = None,
        make_evaluation_env: EnvFactory | None = None,
        recorder: Recorder | None = None,
    ):
        """Checks what can be checked before anything is built.

        Args:
          config: the run.
          make_agent: ``(config.agent, spec) -> agent``; None: looked up in ``AGENTS`` by the type
            of ``config.agent``.
          make_env: makes one training env; None: by ``config.env``.
          make_evaluation_env: makes one env to be scored in; None: by ``config.evaluation.env``,
            or like the training env.
          recorder: gets all that is recorded, besides the CSV files that are always written; None:
            the console.

        Raises:
          ConfigError: no such env, or no agent for this config.
        """
        self.config = config
        self._make_agent = make_agent or agent_of(config.agent)
        self._make_env = make_env or make.factory(config.env, config.env_options)
        if make_evaluation_env is None and config.evaluation.env is not None:
            make_evaluation_env = make.factory(config.evaluation.env)
        self._make_evaluation_env = make_evaluation_env or self._make_env
        self._recorder = ConsoleRecorder() if recorder is None else recorder
        self.evaluations: list[Evaluation] = []
        """So far, in order of version."""

    @property
    def state(self) -> Any:
        """The agent's state after the last update."""
        return self.parts.learner.state

    def run(self) -> Summary:
        """Trains to ``config.env_steps``; raises what went wrong."""
        with contextlib.ExitStack() as stack:
            factories = self._make_agent, self._make_env, self._make_evaluation_env
            self.parts = build(self.config, *factories, stack)
            self._directory = RunDirectory(self.config)
            self._records = MultiRecorder(CSVRecorder(self._directory.path), self._recorder)
            self._records.start(to_json(self.config))
            stack.callback(self._records.close)
            return self._lockstep()

    # ---- driving ----------------------------------------------------------------------------

    def _lockstep(self) -> Summary:
        """Actors and learner in turn: whenever a whole call of updates is owed, it is made."""
        parts, budget = self.parts, self.config.env_steps
        self._clock, self._best = Clock(budget), None
        self._published = self._offered_at = 0
        with self._clock.measure("learning"):
            parts.learner.compile()
        self._publish()
        self._evaluate()
        while parts.limiter.env_steps < budget:
            for actor in parts.actors:
                with self._clock.measure("acting"):
                    actor.step()
                self._learn()
                if parts.limiter.env_steps >= budget:
                    break
                self._report()
        return self._finish()

    def _learn(self) -> None:
        """Makes the whole calls that are owed, handing parameters over when they are due."""
        parts, calls = self.parts, self.config.learner.updates_per_call
        with self._clock.measure("learning"):
            while parts.limiter.owed() >= calls:
                rows, weight, _ = parts.prefetcher.fetch()
                parts.learner.step(rows, weight)
                parts.limiter.update(calls)
                if parts.learner.updates - self._published >= self.config.learner.publish_period:
                    self._publish()
            if parts.limiter.env_steps - self._offered_at >= EXPLORE_PERIOD:
                self._publish()

    def _snapshot(self) -> Snapshot:
        """The newest parameters; their buffers live until the learner's next step."""
        parts, env_steps = self.parts, self.parts.limiter.env_steps
        params = parts.agent.actor_params(parts.learner.state)
        return Snapshot(parts.learner.updates, env_steps, parts.agent.explore(env_steps), params)

    def _publish(self) -> None:
        snapshot = self._snapshot()
        self.parts.store.publish(snapshot)
        self.parts.store.deliver()
        self._published, self._offered_at = snapshot.version, snapshot.env_steps

    def _finish(self) -> Summary:
        """How a run ends: the owed updates, the last version published, scored and kept."""
        parts = self.parts
        for actor in parts.actors:
            actor.flush()
        self._learn()
        parts.learner.finish()
        self._publish()
        self._record_train()
        self._evaluate()
        last = self.parts.store.latest()
        score = self.evaluations[-1].score if self.evaluations else math.nan
        self._directory.save_policy(LAST, parts, last, score)
        self._record_timing()
        return self._summary("env_steps reached", score)

    # ---- reporting --------------------------------------------------------------------------

    def _report(self) -> None:
        """Records and evaluations that are due, by env steps; the clock's by the clock."""
        env_steps, before = self.parts.limiter.env_steps, self._reported_at
        self._reported_at = env_steps
        if crossed(self.config.record_period, before, env_steps):
            self.parts.learner.finish()
            self._record_train()
        if crossed(self.config.evaluation.period, before, env_steps):
            self._evaluate()
        if self._clock.due(TIMING_SECONDS):
            self._record_timing()

    _reported_at = 0

    def _record_train(self) -> None:
        parts = self.parts
        values = {"train/updates": float(parts.learner.done)}
        values |= {f"train/{k}": v for k, v in parts.learner.take_metrics().items()}
        values |= parts.counters.take()
        values["actor/explore"] = parts.store.latest().explore
        values["replay/size"] = float(len(parts.replay))
        values["replay/balance"] = parts.limiter.balance
        self._records.record("train", parts.limiter.env_steps, values)

    def _record_timing(self) -> None:
        env_steps, updates = self.parts.limiter.env_steps, self.parts.learner.done
        self._records.record("timing", env_steps, self._clock.take(env_steps, updates))

    def _evaluate(self) -> None:
        """Scores the newest parameters, and keeps them if they are the best so far."""
        parts = self.parts
        if parts.evaluator is None:
            return
        with self._clock.measure("evaluating"):
            evaluation = parts.evaluator.evaluate(parts.store.copy(self._snapshot()))
        self.evaluations.append(evaluation)
        self._records.record("evaluation", evaluation.snapshot.env_steps, evaluation.values())
        best = -math.inf if self._best is None else self._best.score
        if evaluation.score > best:  # never true of NaN
            self._best = evaluation
            self._directory.save_policy(BEST, parts, evaluation.snapshot, evaluation.score)

    def _summary(self, reason: str, score: float) -> Summary:
        parts, best = self.parts, self._best
        return Summary(
            agent=self.config.agent_name,
            env=self.config.env,
            reason=reason,
            env_steps=parts.limiter.env_steps,
            updates=parts.learner.updates,
            episodes=parts.counters.episodes,
            seconds=self._clock.seconds,
            score=score,
            best_score=best.score if best else math.nan,
            best_env_steps=best.snapshot.env_steps if best else 0,
            directory=self._directory.path,
        )


def crossed(period: int, before: int, now: int) -> bool:
    """Whether a multiple of ``period`` lies in (before, now]; never for 0."""
    return period > 0 and now // period > before // period
