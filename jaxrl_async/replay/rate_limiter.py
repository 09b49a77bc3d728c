"""Updates per env step, held."""

import math
from fractions import Fraction
from typing import final

from jaxrl_async.config import ConfigError


@final
class RateLimiter:
    """Holds the balance of experience and updates within a slack.

        balance = (env_steps - warmup_steps) * updates_per_env_step - updates

    The balance counts from ``warmup_steps`` on, up to which it is 0: the learner never catches up
    on the warm-up. An insert of c env steps fits if balance + c * ratio <= slack, a call of K
    updates if balance - K >= -slack.

    The ratio is a fraction, so that 100 * 0.29 is the 29 updates that were asked for and not the 28
    of floating-point arithmetic.
    """

    def __init__(
        self,
        updates_per_env_step: float,
        *,
        warmup_steps: int,
        slack: float | None,
        max_insert: int,
        max_update: int,
    ):
        """Starts at zero.

        Args:
          updates_per_env_step: the ratio to hold.
          warmup_steps: env steps before the first update.
          slack: how far the two sides may drift apart, in updates; None: twice the least.
          max_insert: most env steps in one insert.
          max_update: most updates in one call.

        Raises:
          ConfigError: with this slack both sides could wait for each other for ever.
        """
        self._ratio = Fraction(updates_per_env_step).limit_denominator(1_000_000)
        self._warmup_steps = warmup_steps
        both = max_insert * self._ratio + max_update
        self.slack = Fraction(2 * both if slack is None else slack)
        if 2 * self.slack < both:
            raise ConfigError(
                f"learner.slack = {float(self.slack):g}: 2 * slack must be at least an insert of"
                f" {max_insert} env steps * {float(self._ratio):g} + {max_update} updates per call"
                f" = {float(both):g}, or actors and learner wait for each other for ever;"
                f" use a slack of {math.ceil(both / 2)} or more"
            )
        self.env_steps = 0
        self.updates = 0

    @property
    def balance(self) -> float:
        """Updates due, less those made; negative where the learner is ahead."""
        return float(self._balance())

    def _balance(self) -> Fraction:
        return max(0, self.env_steps - self._warmup_steps) * self._ratio - self.updates

    def insert(self, env_steps: int) -> None:
        """Counts experience."""
        self.env_steps += env_steps

    def update(self, updates: int) -> None:
        """Counts updates."""
        self.updates += updates

    def owed(self) -> int:
        """Whole updates still due."""
        return max(0, math.floor(self._balance()))
