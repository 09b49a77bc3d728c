"""Uniform replay: what is drawn, from what, and that nobody else touches it."""

import numpy as np
import pytest

from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.transitions import TransitionStore
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.types import ArraySpec, Chunk, EnvSpec, Layout, Transition, Windows, leaves

SPEC = EnvSpec(ArraySpec((2,), "float32"), action_size=3, discrete=True)


def make_replay(capacity, seed=0):
    store = TransitionStore(capacity, Layout(SPEC))
    return Replay(store, Uniform(), np.random.SeedSequence(seed))


def chunk(first, count, **changes):
    """``count`` transitions that hold ``first + i`` in every field."""
    numbers = np.arange(first, first + count)
    pairs = np.repeat(numbers[:, None], 2, axis=1).astype(np.float32)
    scalars = numbers.astype(np.float32)
    transitions = Transition(pairs, numbers.astype(np.int32), scalars, scalars, pairs)
    windows = Windows(
        transitions._replace(**changes), np.zeros(count, np.int32), np.zeros(count, np.uint8)
    )
    return Chunk(
        windows,
        actor=0,
        incarnation=0,
        env_steps=count,
        episodes=(),
        version=-1,
        version_env_steps=0,
    )


def filled(capacity, count, seed=0):
    """After ``count`` transitions, added one by one."""
    replay = make_replay(capacity, seed)
    for first in range(count):
        replay.add(chunk(first, 1))
    return replay


def rewards(replay):
    return replay.contents().reward.tolist()


def bits(replay):
    return [leaf.tobytes() for leaf in leaves(replay.contents())]


def test_contents_are_the_newest_transitions_oldest_first():
    replay = filled(capacity=4, count=6)

    contents = replay.contents()

    assert len(replay) == 4
    assert (contents.action.dtype, contents.observation.shape) == (np.int32, (4, 2))
    for leaf in leaves(contents):
        np.testing.assert_array_equal(leaf.reshape(4, -1)[:, 0], [2, 3, 4, 5])


def test_a_sample_has_a_leading_axis_of_batches_and_rows_that_belong_together():
    replay = filled(capacity=50, count=80)

    sample = replay.sample(batches=3, size=5)

    assert sample.ids.shape == sample.weight.shape == (3, 5)
    assert (sample.ids.dtype, sample.weight.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(sample.weight, 1.0)
    drawn = Layout(SPEC).unpack(sample.rows)
    assert drawn.observation.shape == (3, 5, 2)
    # Transition i was the i-th added, so its insertion number is what every field holds.
    for leaf in leaves(drawn):
        np.testing.assert_array_equal(leaf.reshape(3, 5, -1)[..., -1], sample.ids)


@pytest.mark.parametrize("count", [1, 3, 8, 9, 100])
def test_only_transitions_that_are_kept_are_drawn_and_all_of_them_are(count):
    replay = filled(capacity=8, count=count)

    ids = replay.sample(batches=20, size=50).ids

    # 1000 draws of at most 8: one is missed with a chance of 8 (7/8)^1000, below 10^-56.
    assert set(ids.ravel().tolist()) == set(range(max(0, count - 8), count))


def test_every_kept_transition_is_equally_likely():
    # 100 ids, 50,000 draws, 500 expected each. Chi-square with 99 degrees of freedom has mean 99
    # and standard deviation sqrt(198) = 14.1: five of these up and down.
    replay = filled(capacity=100, count=137, seed=3)

    ids = replay.sample(batches=100, size=500).ids

    counts = np.bincount(ids.ravel() - 37, minlength=100)
    chi_square = ((counts - 500) ** 2 / 500).sum()
    assert len(counts) == 100
    assert 99 - 5 * 14.1 < chi_square < 99 + 5 * 14.1


def test_draws_of_one_batch_and_of_two_batches_do_not_depend_on_each_other():
    # Drawn with replacement: of 10 * 10 pairs of neighbours each is expected 200 times in 20,000;
    # 99 degrees of freedom as above.
    replay = filled(capacity=10, count=10, seed=4)

    ids = replay.sample(batches=2, size=20_000).ids

    for first, second in ((ids[0], ids[1]), (ids[0, :-1], ids[0, 1:])):
        counts = np.bincount(10 * first + second, minlength=100)
        expected = len(first) / 100
        assert ((counts - expected) ** 2 / expected).sum() < 99 + 5 * 14.1


def test_the_same_seed_draws_the_same_ids_and_another_seed_others():
    first, again, other = (filled(capacity=100, count=100, seed=seed) for seed in (1, 1, 2))

    ids = [[r.sample(2, 8).ids.tolist() for _ in range(3)] for r in (first, again, other)]

    assert ids[0] == ids[1] != ids[2]
    assert ids[0][0] != ids[0][1]


def test_a_sample_is_never_touched_again():
    replay = filled(capacity=5, count=5)

    sample = replay.sample(batches=2, size=4)
    before = [array.tobytes() for array in (*sample.rows.values(), sample.weight, sample.ids)]
    for first in range(5, 25):
        replay.add(chunk(first, 1))
    replay.sample(batches=2, size=4)

    after = [array.tobytes() for array in (*sample.rows.values(), sample.weight, sample.ids)]
    assert after == before


def test_writing_into_a_sample_changes_nothing_that_is_kept():
    replay = filled(capacity=5, count=5)
    before = bits(replay)

    sample = replay.sample(batches=1, size=50)
    for array in (*sample.rows.values(), sample.weight, sample.ids):
        array[:] = 77
    contents = replay.contents()
    contents.reward[:] = 77

    assert bits(replay) == before
    np.testing.assert_array_equal(replay.sample(1, 50).weight, 1.0)


def test_writing_into_an_added_chunk_changes_nothing_that_is_kept():
    replay, added = make_replay(capacity=5), chunk(0, 5)
    replay.add(added)
    before = bits(replay)

    for leaf in leaves(added.windows.transitions):
        leaf[:] = 77

    assert bits(replay) == before


def test_sampling_changes_no_byte_of_what_is_kept():
    replay = filled(capacity=5, count=8)
    before = bits(replay)

    for _ in range(10):
        replay.sample(batches=2, size=7)

    assert bits(replay) == before


@pytest.mark.parametrize("capacity", [1, 4])
def test_a_chunk_as_long_as_the_replay_is_accepted_and_sampled(capacity):
    # flashbax PR #40
    replay = make_replay(capacity)
    replay.add(chunk(0, capacity))
    replay.add(chunk(capacity, capacity))

    ids = replay.sample(batches=1, size=200).ids

    assert rewards(replay) == list(range(capacity, 2 * capacity))
    assert set(ids.ravel().tolist()) == set(range(capacity, 2 * capacity))


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (chunk(9, 5), "5 rows at once into a ring of 4"),
        (chunk(9, 2, reward=np.zeros(3, np.float32)), r"float32\[2, 2\] where"),
        (chunk(9, 2, next_observation=np.zeros((2, 3), np.float32)), r"float32\[2, 3\] where"),
        (chunk(9, 2, next_observation=np.zeros((2, 2), np.complex64)), r"complex64\[2, 2\] where"),
        (chunk(9, 2, action=np.zeros(2, np.float64)), r"float64\[2\] where"),
        (chunk(9, 2, extras=(np.zeros(2),)), "zip"),
    ],
    ids=["too many", "reward", "last leaf's shape", "last leaf's dtype", "action", "extras"],
)
def test_a_chunk_that_is_refused_changes_no_byte(refused, message):
    replay = filled(capacity=4, count=6)
    before, ids = bits(replay), filled(capacity=4, count=6).sample(1, 9).ids

    with pytest.raises(ValueError, match=message):
        replay.add(refused)

    assert bits(replay) == before
    np.testing.assert_array_equal(replay.sample(1, 9).ids, ids)


def test_a_chunk_without_windows_adds_nothing():
    replay = filled(capacity=4, count=2)

    replay.add(chunk(9, 0))

    assert rewards(replay) == [0, 1]


def test_an_empty_replay_has_nothing_to_sample():
    with pytest.raises(ValueError, match="add transitions first"):
        make_replay(capacity=4).sample(1, 1)


def test_pixels_are_sampled_and_kept_in_one_byte_each():
    # 2 * 6 * 6 * 4 = 288 bytes of observation and next observation per row
    spec = EnvSpec(ArraySpec((6, 6, 4), "uint8"), action_size=3, discrete=True)
    replay = Replay(TransitionStore(10, Layout(spec)), Uniform(), np.random.SeedSequence(0))
    pixels = np.arange(2 * 144, dtype=np.uint8).reshape(2, 6, 6, 4)
    replay.add(chunk(0, 2, observation=pixels, next_observation=pixels[::-1]))

    sample = replay.sample(batches=1, size=3)

    assert sample.rows["uint8"].nbytes == 3 * 288
    np.testing.assert_array_equal(replay.contents().observation, pixels)
    np.testing.assert_array_equal(replay.contents().next_observation, pixels[::-1])
