"""The Trainer: it builds the parts of a run, has them driven, and says how it went."""

import contextlib
import math
import pathlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

from jaxrl_async.agents import agent_of
from jaxrl_async.config import RunConfig
from jaxrl_async.envs import make
from jaxrl_async.envs.make import EnvFactory
from jaxrl_async.overrides import to_json
from jaxrl_async.recorders import ConsoleRecorder, CSVRecorder, MultiRecorder, Recorder
from jaxrl_async.runtime.checkpoint import Checkpointer
from jaxrl_async.runtime.directory import RunDirectory
from jaxrl_async.runtime.driver import run_lockstep, run_threads
from jaxrl_async.runtime.evaluator import Evaluation
from jaxrl_async.runtime.parts import AgentFactory, Parts, build
from jaxrl_async.runtime.policy import LAST
from jaxrl_async.runtime.reporter import Callback, Reporter
from jaxrl_async.runtime.run import Run


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
    evaluations_dropped: int
    directory: pathlib.Path

    def __str__(self) -> str:
        """Two lines for people."""
        dropped = f"; {self.evaluations_dropped} evaluations dropped"
        return (
            f"{self.agent} on {self.env}: return {self.score:,.1f} after {self.env_steps:,} env"
            f" steps, {self.updates:,} updates and {self.episodes:,} episodes in"
            f" {self.seconds:,.0f} s ({self.reason}{dropped if self.evaluations_dropped else ''})\n"
            f"best return {self.best_score:,.1f} at {self.best_env_steps:,} env steps;"
            f" the run lies in {self.directory}"
        )


@final
class Trainer:
    """One run: in threads, or with ``config.lockstep`` in one, the same bits each time."""

    def __init__(
        self,
        config: RunConfig,
        *,
        make_agent: AgentFactory | None = None,
        make_env: EnvFactory | None = None,
        make_evaluation_env: EnvFactory | None = None,
        recorder: Recorder | None = None,
        callbacks: Sequence[Callback] = (),
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
          callbacks: called on the thread that called ``run``.

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
        self._callbacks = callbacks
        self.parts: Parts
        """Of the last run."""

    @property
    def state(self) -> Any:
        """The agent's state after the last update."""
        return self.parts.learner.state

    @property
    def evaluations(self) -> list[Evaluation]:
        """Of the last call of ``run``, in order of version."""
        return self._reporter.evaluations

    @property
    def history(self) -> list[dict[str, float]]:
        """One row per evaluation, as recorded, also of before a resume."""
        return self._reporter.history

    def run(self) -> Summary:
        """Trains to ``config.env_steps``, going on where the directory's checkpoint stands.

        Raises:
          ConfigError: the config cannot work, or the directory holds another run.
          Exception: what went wrong, in whichever thread it did.
        """
        with contextlib.ExitStack() as stack:
            interrupted = stack.enter_context(stop_on_interrupt())
            factories = self._make_agent, self._make_env, self._make_evaluation_env
            self.parts = build(self.config, *factories, stack)
            directory = RunDirectory(self.config)
            files = CSVRecorder(directory.path)
            recorder = MultiRecorder(files, self._recorder)
            stack.callback(recorder.close)
            recorder.start(to_json(self.config))
            reporter = Reporter(
                self.config, self.parts, directory, recorder, files, self._callbacks, interrupted
            )
            self._reporter = reporter
            checkpointer = Checkpointer(directory.path, keep=self.config.checkpoint.keep)
            run = Run(self.config, self.parts, reporter, checkpointer)
            newest = checkpointer.latest()
            if newest is not None:
                run.resume(newest)
            drive = run_lockstep if self.config.lockstep else run_threads
            drive(self.config, self.parts, run)
            directory.save_policy(LAST, self.parts, self.parts.store.latest(), self._score())
            reporter.record_timing(period=0.0)
            return self._summary(directory)

    def _score(self) -> float:
        history = self._reporter.history
        return history[-1]["evaluation/return_mean"] if history else math.nan

    def _summary(self, directory: RunDirectory) -> Summary:
        parts, reporter = self.parts, self._reporter
        is_scored = math.isfinite(reporter.best_score)
        return Summary(
            agent=self.config.agent_name,
            env=self.config.env,
            reason=reporter.reason or "env_steps reached",
            env_steps=parts.limiter.env_steps,
            updates=parts.learner.updates,
            episodes=parts.counters.episodes,
            seconds=reporter.clock.seconds,
            score=self._score(),
            best_score=reporter.best_score if is_scored else math.nan,
            best_env_steps=reporter.best_env_steps,
            evaluations_dropped=parts.evaluator.dropped if parts.evaluator else 0,
            directory=directory.path,
        )


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; a second one raises ``KeyboardInterrupt``.

    Python lets only the main thread handle signals; elsewhere, and where the process ignores
    Ctrl-C, nothing is changed.
    """
    interrupted = threading.Event()
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL  # None: not set from Python
    is_ours = threading.current_thread() is threading.main_thread() and before != signal.SIG_IGN
    if not is_ours:
        yield interrupted
        return

    def stop(signum: int, frame: Any) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
