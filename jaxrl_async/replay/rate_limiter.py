"""Updates per env step, held between threads."""

import collections
import math
import threading
from fractions import Fraction
from typing import final

from jaxrl_async.checks import ConfigError


class Closed(Exception):
    """There is nothing more to wait for: the budget is spent, or the run stops."""


@final
class RateLimiter:
    """Holds the balance of experience and updates within a slack, on both sides.

        balance = (env_steps - warmup_steps) * updates_per_env_step - updates

    Invariant: after the warm-up, and until no call is due any more, ``-slack <= balance <= slack``.
    Up to ``warmup_steps`` inserts pass freely and no update does; there the balance is 0, so the
    learner never catches up on the warm-up. An insert of c env steps passes if
    balance + c * ratio <= slack, a call of K updates if balance - K >= -slack and if it will still
    be due when the budget is spent, so that the updates of a whole run are exact. Where no whole
    call is due any more, the last inserts pass freely: there is nothing left to wait for. Inserts
    pass in order of arrival: otherwise actors with small chunks would starve one with a large one.

    An insert is admitted, then stored by the caller, then counted by ``inserted``: what is counted
    can be sampled. Any thread may call anything. All counting is in integers, the ratio a fraction
    p / q: 100 * 0.29 is the 29 updates that were asked for and not the 28 of floating point.
    """

    def __init__(
        self,
        updates_per_env_step: float | None,
        *,
        warmup_steps: int,
        slack: float | None,
        max_insert: int,
        max_update: int,
        budget: int,
    ):
        """Starts at zero.

        Args:
          updates_per_env_step: the ratio to hold; None: free-running after the warm-up.
          warmup_steps: env steps before the first update.
          slack: how far the two sides may drift apart, in updates; None: 2 (insert * ratio + K).
          max_insert: most env steps in one insert.
          max_update: updates in one call, K.
          budget: env steps of the run; the insert that reaches it is the last.

        Raises:
          ConfigError: with this slack both sides could wait for each other for ever.
        """
        self._is_free = updates_per_env_step is None
        ratio = as_fraction(updates_per_env_step or 0)
        self._p, self._q = ratio.numerator, ratio.denominator
        self._warmup_steps, self._budget, self._max_update = warmup_steps, budget, max_update
        both = max_insert * ratio + max_update
        self.slack = Fraction(2 * both if slack is None else slack)
        # The insert that ends the warm-up must pass by itself, with all but one of its steps due.
        least = max(both / 2, (max_insert - (warmup_steps > 0)) * ratio)
        if not self._is_free and self.slack < least:
            raise ConfigError(
                f"learner.slack = {float(self.slack):g}: with inserts of {max_insert} env steps *"
                f" {float(ratio):g} and {max_update} updates per call, 2 * slack must be at least"
                f" {float(2 * least):g}, or actors and learner wait for each other for ever;"
                f" use a slack of {math.ceil(least)} or more"
            )
        self._scaled_slack = math.floor(self.slack * self._q)
        self._lock = threading.Lock()
        self._may_update = threading.Condition(self._lock)
        self._waiting: collections.OrderedDict[int, threading.Condition] = collections.OrderedDict()
        self._is_closed = False
        self._admitted = 0  # env steps let through, perhaps not yet stored
        self._env_steps = 0
        self._updates = 0

    # ---- counts -----------------------------------------------------------------------------

    @property
    def env_steps(self) -> int:
        """Env steps stored."""
        return self._env_steps

    @property
    def updates(self) -> int:
        """Updates let through."""
        return self._updates

    @property
    def balance(self) -> float:
        """Updates due less those let through, negative where the learner is ahead; NaN if free."""
        with self._lock:
            return math.nan if self._is_free else self._balance(self._env_steps) / self._q

    @property
    def is_spent(self) -> bool:
        """Whether the budget is reached and stored."""
        return self._env_steps >= self._budget

    def owed(self) -> int:
        """Whole updates still due; 0 when free-running."""
        with self._lock:
            return max(0, self._balance(self._env_steps) // self._q)

    def _balance(self, env_steps: int) -> int:
        """The balance after so many env steps, times q."""
        return max(0, env_steps - self._warmup_steps) * self._p - self._updates * self._q

    # ---- actors -----------------------------------------------------------------------------

    def wait_to_insert(self, env_steps: int, timeout: float) -> bool:
        """True: admitted, to be stored and counted by ``inserted``. False: not yet, call again.

        A thread that was refused keeps its place in the line, so it must call again until it is
        admitted or ``Closed`` is raised; the line waits for it.

        Raises:
          Closed: the budget is spent or the limiter closed.
        """
        with self._lock:
            place = self._waiting.setdefault(threading.get_ident(), threading.Condition(self._lock))

            def is_first_and_fits() -> bool:
                return self._ends_inserts() or (
                    next(iter(self._waiting.values())) is place and self._fits(env_steps)
                )

            if not place.wait_for(is_first_and_fits, timeout):
                return False
            del self._waiting[threading.get_ident()]
            if self._ends_inserts():
                raise Closed
            self._admitted += env_steps
            self._wake_line()
            return True

    def inserted(self, env_steps: int) -> None:
        """Counts what was admitted and is now stored."""
        with self._lock:
            self._env_steps += env_steps
            if self._ends_updates() or self._is_due(self._max_update):
                self._may_update.notify_all()

    def _ends_inserts(self) -> bool:
        return self._is_closed or self._admitted >= self._budget

    def _fits(self, env_steps: int) -> bool:
        if self._is_free or self._balance(self._budget) < self._max_update * self._q:
            return True
        return self._balance(self._admitted + env_steps) <= self._scaled_slack

    def _wake_line(self) -> None:
        """Wakes the first in line, or at the end the whole line."""
        for place in self._waiting.values():
            place.notify()
            if not self._ends_inserts():
                break

    # ---- learner ----------------------------------------------------------------------------

    def wait_to_update(self, updates: int, timeout: float) -> bool:
        """True: a call of so many updates may be made, and is counted. False: not yet.

        Raises:
          Closed: the limiter is closed, or the budget spent and no whole call due any more.
        """
        with self._lock:
            if not self._may_update.wait_for(
                lambda: self._is_closed or self._ends_updates() or self._is_due(updates), timeout
            ):
                return False
            if self._is_closed or self._ends_updates():
                raise Closed
            self._updates += updates
            self._wake_line()
            return True

    def _ends_updates(self) -> bool:
        if self._env_steps < max(self._budget, self._admitted):
            return False
        return self._balance(self._env_steps) < self._max_update * self._q

    def _is_due(self, updates: int) -> bool:
        if self._env_steps < max(1, self._warmup_steps):
            return False
        if self._is_free:
            return True
        taken = updates * self._q
        is_still_due = self._balance(max(self._budget, self._env_steps)) >= taken
        return is_still_due and self._balance(self._env_steps) - taken >= -self._scaled_slack

    # ---- saving and restoring ---------------------------------------------------------------

    def restore(self, env_steps: int, updates: int) -> None:
        """Takes up the counts of an earlier run: what was stored, and what was done."""
        with self._lock:
            self._admitted = self._env_steps = env_steps
            self._updates = updates

    def check_valid(self) -> None:
        """Raises AssertionError where the counts contradict the invariant.

        What ``restore`` took up may lie beyond the slack, until the side that is ahead has waited.
        """
        with self._lock:
            assert 0 <= self._env_steps <= self._admitted
            if self._env_steps < max(1, self._warmup_steps):
                assert self._updates == 0
            elif not self._is_free:
                balance = self._balance(self._env_steps)
                may_pass_freely = self._balance(self._budget) < self._max_update * self._q
                assert -self._scaled_slack <= balance
                assert balance <= self._scaled_slack or may_pass_freely

    # ---- end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Every waiter, now and later, raises ``Closed``."""
        with self._lock:
            self._is_closed = True
            self._may_update.notify_all()
            self._wake_line()


def as_fraction(ratio: float) -> Fraction:
    """The ratio as it was written: 0.29 is 29/100; of its inverse where that is larger."""
    exact = Fraction(ratio)
    if exact >= 1 or exact == 0:
        return exact.limit_denominator(1_000_000)
    return 1 / (1 / exact).limit_denominator(1_000_000)
