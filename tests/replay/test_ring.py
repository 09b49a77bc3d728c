"""The packed ring: insertion numbers, the seam, and what is refused."""

import numpy as np
import pytest

from jaxrl_async.replay.ring import Ring
from jaxrl_async.types import ArraySpec, EnvSpec, Layout

WIDTHS = {"float32": 2, "int32": 1}


def rows(first, count):
    """Row number i holds i in its integer, and i and -i in its floats."""
    numbers = np.arange(first, first + count)
    floats = np.stack([numbers, -numbers], axis=1)
    return {"float32": floats.astype(np.float32), "int32": numbers[:, None].astype(np.int32)}


def filled(capacity, *counts):
    ring = Ring(capacity, WIDTHS)
    for count in counts:
        ring.add(rows(ring.total, count))
    return ring


def kept(ring):
    return ring.take(np.arange(ring.oldest, ring.total))


def assert_holds(ring, first, count):
    for dtype, array in rows(first, count).items():
        np.testing.assert_array_equal(kept(ring)[dtype], array)


def test_a_new_ring_is_empty():
    ring = Ring(3, WIDTHS)

    assert (len(ring), ring.total, ring.oldest) == (0, 0, 0)


def test_rows_come_back_by_their_insertion_number():
    ring = filled(5, 3)

    taken = ring.take(np.array([[2, 0], [1, 1]]))

    np.testing.assert_array_equal(taken["int32"][..., 0], [[2, 0], [1, 1]])
    np.testing.assert_array_equal(taken["float32"], [[[2, -2], [0, 0]], [[1, -1], [1, -1]]])
    assert (len(ring), ring.total, ring.oldest) == (3, 3, 0)


def test_the_oldest_rows_are_overwritten_and_the_others_keep_their_numbers():
    # Capacity 5: after 3 + 4 rows, number 5 lies in slot 0 and 6 in slot 1, over 0 and 1.
    ring = filled(5, 3, 4)

    assert (len(ring), ring.total, ring.oldest) == (5, 7, 2)
    assert_holds(ring, first=2, count=5)


@pytest.mark.parametrize("capacity", [1, 2, 5, 7])
def test_numbers_survive_many_rounds_of_chunks_of_any_size(capacity):
    ring, rng = Ring(capacity, WIDTHS), np.random.default_rng(0)

    for _ in range(100):
        ring.add(rows(ring.total, int(rng.integers(0, capacity + 1))))

        assert len(ring) == min(ring.total, capacity)
        assert_holds(ring, first=ring.oldest, count=len(ring))
    assert ring.total > 10 * capacity


def test_numbers_beyond_32_bits_still_find_their_slot():
    # google/dopamine's ReplayItemID was an int32. Row 2^31 + 3 lies in slot 1 of 2: it is odd.
    ring = Ring(2, WIDTHS)
    ring.total = 2**31 + 2

    ring.add({"float32": np.full((2, 2), [[7], [8]], np.float32), "int32": np.array([[7], [8]])})

    taken = ring.take(np.array([2**31 + 2, 2**31 + 3]))
    np.testing.assert_array_equal(taken["int32"], [[7], [8]])
    assert ring.oldest == 2**31 + 2


@pytest.mark.parametrize("before", [0, 2, 4])
def test_a_chunk_as_long_as_the_ring_is_accepted(before):
    # flashbax PR #40
    ring = filled(4, before, 4)

    assert len(ring) == 4
    assert_holds(ring, first=before, count=4)


def test_more_rows_than_the_ring_holds_are_refused_and_nothing_changes():
    ring = filled(4, 3)
    before = {dtype: array.tobytes() for dtype, array in kept(ring).items()}

    with pytest.raises(ValueError, match="5 rows at once into a ring of 4: add fewer"):
        ring.add(rows(3, 5))

    assert {dtype: array.tobytes() for dtype, array in kept(ring).items()} == before
    assert ring.total == 3


def test_no_rows_change_nothing():
    ring = filled(4, 3, 0, 0)

    assert ring.total == 3
    assert_holds(ring, first=0, count=3)


def test_taken_rows_are_copies():
    ring = filled(3, 3)

    taken = ring.take(np.array([0, 1, 2]))
    ring.add(rows(3, 3))
    np.testing.assert_array_equal(taken["int32"][:, 0], [0, 1, 2])

    taken["int32"][:] = -1
    assert_holds(ring, first=3, count=3)


def test_added_rows_are_copied():
    ring, added = Ring(3, WIDTHS), rows(0, 3)

    ring.add(added)
    for array in added.values():
        array[:] = -1

    assert_holds(ring, first=0, count=3)


def test_pixels_are_kept_in_one_byte_each():
    # stable-baselines3 #40, #1031: 1000 * 84 * 84 * 4 = 28,224,000 bytes per observation array,
    # of which a transition has two: the observation and the next one.
    spec = EnvSpec(ArraySpec((84, 84, 4), "uint8"), action_size=4, discrete=True)
    layout = Layout(spec)
    ring = Ring(1000, layout.widths)

    everything = ring.take(np.arange(1000))

    assert everything["uint8"].dtype == np.uint8
    assert everything["uint8"].nbytes == 2 * 28_224_000
    assert everything["float32"].nbytes == 1000 * 2 * 4  # reward and discount
    assert everything["int32"].nbytes == 1000 * 4  # the action
    assert set(everything) == {"uint8", "float32", "int32"}
