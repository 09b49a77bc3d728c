"""A run's own and recorded experience in one batch: shares, ids, and where priorities go."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxrl_async.replay.mixed import Mixed
from jaxrl_async.replay.prioritized import Prioritized
from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.transitions import TransitionStore
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.runtime.prefetch import Prefetcher
from jaxrl_async.types import ArraySpec, EnvSpec, Layout, Transition, leaves

LAYOUT = Layout(EnvSpec(ArraySpec((2,), "float32"), action_size=3, discrete=True))
RECORDED = 5_000
"""What the fields of the dataset's rows begin with."""


def rows(first, count):
    """Transitions first, first + 1, ... whose every field holds their number."""
    numbers = np.arange(first, first + count)
    wide, flat = np.repeat(numbers[:, None], 2, axis=1).astype("f"), numbers.astype("f")
    return LAYOUT.pack(Transition(wide, numbers.astype(np.int32), flat, flat, wide))


def make(first, count, seed, norm=None):
    """A replay, prioritized where ``norm`` is given, of rows that hold first, first + 1, ..."""
    sampler = Uniform()
    if norm is not None:
        sampler = Prioritized(count, exponent=1.0, importance=lambda _: 1.0, norm=norm)
    replay = Replay(TransitionStore(count, LAYOUT), sampler, np.random.SeedSequence(seed))
    replay.append(rows(first, count))
    return replay


def mixed(share=0.5, norm=None, seed=0):
    """20 rows of its own, 30 of a dataset."""
    return Mixed(make(0, 20, seed, norm), make(RECORDED, 30, seed + 1), share)


@pytest.mark.parametrize("norm", [None, "batch", "buffer"])
def test_every_batch_has_the_same_number_of_each_and_rows_that_belong_to_their_ids(norm):
    sample = mixed(norm=norm).sample(batches=50, size=8)

    assert sample.ids.shape == sample.weight.shape == (50, 8)
    assert (sample.ids.dtype, sample.weight.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(sample.ids >= 0, [[True] * 4 + [False] * 4] * 50)
    # -1 is the dataset's first row, -30 its last
    assert set(sample.ids[:, :4].ravel().tolist()) == set(range(20))
    assert set(sample.ids[:, 4:].ravel().tolist()) == set(range(-30, 0))
    numbers = np.where(sample.ids >= 0, sample.ids, RECORDED - 1 - sample.ids)
    for leaf in leaves(LAYOUT.unpack(sample.rows)):
        np.testing.assert_array_equal(leaf.reshape(50, 8, -1)[..., -1], numbers)
    np.testing.assert_array_equal(sample.weight, 1.0)


@pytest.mark.parametrize(
    ("share", "size", "recorded"),
    [
        (0.5, 1, 0),  # halves go to the even number: .5, 1.5, 2.5, 3.5
        (0.5, 3, 2),
        (0.5, 5, 2),
        (0.5, 7, 4),
        (0.25, 7, 2),  # 1.75
        (0.3, 4, 1),  # 1.2
        (0.1, 4, 0),  # .4
        (0.0, 4, 0),
        (0.9, 4, 4),  # 3.6
        (1.0, 4, 4),
    ],
)
@pytest.mark.parametrize("norm", [None, "batch", "buffer"])
def test_a_share_is_rounded_to_whole_items_of_each_batch(share, size, recorded, norm):
    sample = mixed(share, norm).sample(batches=3, size=size)

    assert sample.ids.shape == sample.weight.shape == (3, size)
    assert {dtype: array.shape[:2] for dtype, array in sample.rows.items()} == {
        "float32": (3, size),
        "int32": (3, size),
    }
    np.testing.assert_array_equal((sample.ids < 0).sum(axis=1), recorded)


def test_its_own_items_keep_their_importance_and_the_dataset_s_weigh_1():
    # 20 items, of which the last has 4 times the others' priority: 1 and 1/4
    source = mixed(norm="buffer")
    errors = np.ones(20)
    errors[19] = 4.0
    source.update_priorities(np.arange(20), errors)

    sample = source.sample(batches=100, size=8)

    expected = np.where(sample.ids == 19, 0.25, 1.0)
    assert (sample.ids == 19).any()
    np.testing.assert_allclose(sample.weight, expected, rtol=1e-5)


@pytest.mark.parametrize("flat", [False, True])
def test_priorities_reach_the_run_s_own_items_only(flat):
    # Both sides prioritized, so that an error on the wrong side would be seen.
    own, recorded = make(0, 20, 0, "batch"), make(RECORDED, 30, 1, "batch")
    alone, before = make(0, 20, 0, "batch"), recorded.state()["sampler"]["mass"]
    ids = np.array([[3, 0, -1, -4], [7, 19, -30, -20]])
    errors = np.arange(2.0, 10.0).reshape(2, 4)

    source = Mixed(own, recorded, 0.5)
    source.update_priorities(ids.ravel() if flat else ids, errors.ravel() if flat else errors)
    alone.update_priorities(np.array([3, 0, 7, 19]), np.array([2.0, 3.0, 6.0, 7.0]))

    np.testing.assert_array_equal(own.state()["sampler"]["mass"], alone.state()["sampler"]["mass"])
    np.testing.assert_array_equal(recorded.state()["sampler"]["mass"], before)
    assert (own.stale, recorded.stale) == (0, 0)


def test_stale_items_of_its_own_are_counted_there():
    own = make(0, 20, 0, "batch")
    source = Mixed(own, make(RECORDED, 30, 1), 0.5)
    own.append(rows(20, 5))

    source.update_priorities(np.array([4, 5, -5]), np.ones(3))

    assert own.stale == 1


def test_seeds_say_what_is_drawn_from_either_side():
    def drawn(own, recorded):
        source = Mixed(make(0, 20, own), make(RECORDED, 30, recorded), 0.5)
        ids = np.concatenate([source.sample(2, 8).ids for _ in range(3)])
        return ids[:, :4].tolist(), ids[:, 4:].tolist()

    base = drawn(0, 1)

    assert drawn(0, 1) == base
    other_own, other_recorded = drawn(2, 1), drawn(0, 2)
    assert other_own[0] != base[0] and other_own[1] == base[1]
    assert other_recorded[0] == base[0] and other_recorded[1] != base[1]


def test_its_size_and_its_total_are_those_of_the_run_s_own():
    own = make(0, 20, 0)
    own.append(rows(20, 7))

    source = Mixed(own, make(RECORDED, 30, 1), 0.5)

    assert len(source) == 20
    assert source.sample(1, 4).total == 27
    assert not source.needs_priorities
    assert Mixed(make(0, 20, 0, "batch"), own, 0.5).needs_priorities


def test_an_empty_replay_of_its_own_has_nothing_to_sample():
    empty = Replay(TransitionStore(4, LAYOUT), Uniform(), np.random.SeedSequence(0))

    with pytest.raises(ValueError, match="add transitions first"):
        Mixed(empty, make(RECORDED, 30, 1), 0.5).sample(1, 4)


def test_the_dataset_s_items_do_not_count_in_the_age_of_what_is_sampled():
    # Own rows 0 to 19 of 20: ages 1 to 20, mean 10.5, standard deviation of 2,000 draws .13
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    prefetcher = Prefetcher(
        mixed(), SimpleNamespace(), batch_size=4_000, updates_per_call=1, sharding=device
    )

    prefetcher.fetch()

    assert prefetcher.means.take("age")["age"] == pytest.approx(10.5, abs=0.7)
