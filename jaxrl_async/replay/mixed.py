"""Batches of a run's own experience and of recorded experience.

Symmetric sampling of RLPD (Ball et al. 2023, https://arxiv.org/abs/2302.02948, section 4.1).
"""

from typing import final

import numpy as np

from jaxrl_async.replay.replay import Replay
from jaxrl_async.types import Sample


@final
class Mixed:
    """Draws a fixed share of every batch from a dataset. Thread-safe.

    An item of the dataset has a negative id: -1 less its insertion number there.
    """

    def __init__(self, online: Replay, dataset: Replay, share: float):
        """Takes the two, and the dataset's share of a batch, rounded to whole items."""
        self._online, self._dataset, self._share = online, dataset, share

    def __len__(self) -> int:
        """Rows kept of the run's own."""
        return len(self._online)

    @property
    def needs_priorities(self) -> bool:
        """Whether the run's own experience takes priorities."""
        return self._online.needs_priorities

    def sample(self, batches: int, size: int) -> Sample:
        """See ``Source``; the run's own items come first in each batch."""
        recorded = round(self._share * size)
        ours = self._online.sample(batches, size - recorded)
        theirs = self._dataset.sample(batches, recorded)
        rows = {
            dtype: np.concatenate([ours.rows[dtype], theirs.rows[dtype]], axis=1)
            for dtype in ours.rows
        }
        weight = np.concatenate([ours.weight, theirs.weight], axis=1)
        ids = np.concatenate([ours.ids, -1 - theirs.ids], axis=1)
        return Sample(rows, weight, ids, ours.total)

    def update_priorities(self, ids: np.ndarray, td_error: np.ndarray) -> None:
        """See ``Source``; the dataset's items have none."""
        is_ours = ids >= 0
        self._online.update_priorities(ids[is_ours], td_error[is_ours])
