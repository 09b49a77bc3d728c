"""From the learner to those who act: the newest parameters, complete or not at all."""

import threading
from typing import NamedTuple, Protocol, final

import jax
import jax.numpy as jnp

from jaxrl_async.replay.rate_limiter import Closed
from jaxrl_async.types import Params

WAIT_SECONDS = 0.1
"""After which a waiting thread looks whether the run has stopped."""


class Snapshot(NamedTuple):
    """Parameters as of one moment of the run."""

    version: int  # learner updates behind these parameters
    env_steps: int  # when they were offered: the x of their evaluation
    explore: float  # what `Agent.act` is to be given with them
    params: Params


class ParamSource(Protocol):
    """Where actors find their parameters."""

    def latest(self, timeout: float | None = None, at_least: int = 0) -> Snapshot:
        """The newest complete snapshot, of version ``at_least``."""
        ...


@final
class ParamStore:
    """The newest parameters. One learner publishes, one thread delivers, any number read.

    Invariant: what ``latest`` returns lies complete on the actors' device, and its version never
    falls. An actor that called a jitted policy on arrays still being computed would wait inside
    the call and hold up the other actors of its device. ``placement`` is that device.
    """

    def __init__(self, placement: jax.sharding.Sharding):
        self._placement = placement
        self._copy = jax.jit(lambda params: jax.tree.map(jnp.copy, params))
        self._changed = threading.Condition()
        self._offered: Snapshot | None = None  # newest published, perhaps still being computed
        self._delivered: Snapshot | None = None
        self._is_closed = False

    def copy(self, snapshot: Snapshot) -> Snapshot:
        """The same with parameters of its own, for who keeps them: an evaluation.

        The copy is dispatched here, ahead of the learner's next step, because that step donates
        the buffers of ``snapshot.params``.
        """
        return snapshot._replace(params=self._copy(snapshot.params))

    def publish(self, offer: Snapshot) -> Snapshot:
        """Offers a copy to the actors and returns it at once; a newer offer replaces an older."""
        offer = self.copy(offer)
        with self._changed:
            self._offered = offer
            self._changed.notify_all()
        return offer

    def deliver(self, timeout: float | None = None) -> bool:
        """Completes the newest offer; False if there was none within ``timeout`` seconds.

        Raises:
          Closed: there was none and none will come.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._offered or self._is_closed, timeout):
                return False
            if self._offered is None:
                raise Closed
            offer, self._offered = self._offered, None
        assert offer is not None
        params = jax.block_until_ready(jax.device_put(offer.params, self._placement))
        with self._changed:
            self._delivered = offer._replace(params=params)
            self._changed.notify_all()
        return True

    def run(self, stop: threading.Event) -> None:
        """Delivers until ``stop`` is set; the body of the publisher's thread."""
        while not stop.is_set():
            self.deliver(WAIT_SECONDS)

    def latest(self, timeout: float | None = None, at_least: int = 0) -> Snapshot:
        """The newest delivered snapshot.

        Waits for the first one, and for one of version ``at_least``; else takes constant time.

        Raises:
          TimeoutError: there was none within ``timeout`` seconds.
          Closed: there was none and none will come.
        """
        with self._changed:

            def is_there() -> bool:
                return self._delivered is not None and self._delivered.version >= at_least

            if not self._changed.wait_for(lambda: is_there() or self._is_closed, timeout):
                raise TimeoutError(f"no parameters were delivered within {timeout} s")
            if not is_there():
                raise Closed
            assert self._delivered is not None
            return self._delivered

    def close(self) -> None:
        """Wakes all who wait; what was delivered stays readable."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def check_valid(self) -> None:
        """Raises AssertionError where ``latest`` is not complete or an offer would make it fall."""
        with self._changed:
            offered, delivered = self._offered, self._delivered
        if delivered is None:
            return
        for leaf in jax.tree.leaves(delivered.params):
            assert leaf.is_ready()
            assert leaf.sharding.is_equivalent_to(self._placement, leaf.ndim)
        assert offered is None or offered.version >= delivered.version
