"""From the replay to the learner's devices."""

from typing import final

import jax
import numpy as np

from jaxrl_async.replay.uniform import UniformReplay


@final
class Prefetcher:
    """Samples the batches of one call and puts them on the devices."""

    def __init__(
        self,
        replay: UniformReplay,
        *,
        batch_size: int,
        updates_per_call: int,
        sharding: jax.sharding.Sharding,
    ):
        self._replay, self._sharding = replay, sharding
        self._shape = (updates_per_call, batch_size)

    def fetch(self) -> tuple[dict[str, jax.Array], jax.Array, np.ndarray]:
        """Rows ``dtype -> [K, B, width]`` and weights [K, B] on the devices, ids [K, B] here.

        The sample is freshly gathered memory that nobody writes again: on the CPU ``device_put``
        may share it with the compiled step instead of copying.
        """
        sample = self._replay.sample(*self._shape)
        rows, weight = jax.device_put((sample.rows, sample.weight), self._sharding)
        return rows, weight, sample.ids
