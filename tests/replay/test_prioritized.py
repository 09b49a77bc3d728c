"""Prioritized draws: public numbers, what priorities reach, and what they never do."""

import collections
import sys
import threading
import time

import numpy as np
import pytest
from small import small

from jaxrl_async.replay.prioritized import EPSILON, Prioritized
from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.transitions import TransitionStore
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.runtime.experience import build_sampler
from jaxrl_async.types import ArraySpec, Chunk, EnvSpec, Layout, Transition, Windows, leaves

LONG = 300.0
LAYOUT = Layout(EnvSpec(ArraySpec((2,), "float32"), action_size=3, discrete=True))


class Picky:
    """Whole transitions, of which only those in ``drawable`` may be drawn."""

    def __init__(self, capacity, drawable):
        self._store, self.drawable = TransitionStore(capacity, LAYOUT), drawable

    def may_draw(self, ids):
        return np.isin(ids, list(self.drawable))

    def __getattr__(self, name):
        return getattr(self._store, name)


def chunk(first, count):
    """Transitions first, first + 1, ... whose every field holds their number, modulo 2^24."""
    numbers = np.arange(first, first + count) % 2**24  # exact in float32
    wide, flat = np.repeat(numbers[:, None], 2, axis=1).astype(np.float32), numbers.astype("f")
    transitions = Transition(wide, numbers.astype(np.int32), flat, flat, wide)
    windows = Windows(transitions, np.zeros(count, np.int32), np.zeros(count, np.uint8))
    return Chunk(windows, 0, 0, count, (), -1, 0)


def make(capacity, errors=(), *, alpha=0.5, beta=0.4, norm="buffer", seed=0, store=None):
    """A replay that holds one item per error."""
    sampler = Prioritized(capacity, exponent=alpha, importance=lambda _: beta, norm=norm)
    store = store or TransitionStore(capacity, LAYOUT)
    replay = Replay(store, sampler, np.random.SeedSequence(seed))
    replay.add(chunk(0, len(errors)))
    replay.update_priorities(np.arange(len(errors)), np.array(errors))
    return replay


def shares(replay, count, draws=100_000):
    """How often each of ``count`` items comes; in one stratified batch off by a draw or two."""
    return np.bincount(replay.sample(1, draws).ids.ravel(), minlength=count) / draws


def weights(replay, count):
    """The weight of each of ``count`` items, all of them drawn."""
    sample = replay.sample(1, 1_000)
    return np.array([sample.weight[sample.ids == i].max() for i in range(count)])


def bits(sample):
    return [array.tobytes() for array in (*sample.rows.values(), sample.weight, sample.ids)]


# ---- public numbers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "alpha", "expected"),
    [
        # 1, 1.4142, 1.7321, 2 of 6.1463
        ([1.0, 2.0, 3.0, 4.0], 0.5, [0.1627, 0.2301, 0.2818, 0.3254]),
        ([1.0, 3.0], 1.0, [0.25, 0.75]),  # flashbax PR #51
        ([-5.0, 1.0], 1.0, [5 / 6, 1 / 6]),  # the size counts and not the sign
        ([1.0, 100.0], 0.0, [0.5, 0.5]),
    ],
)
def test_probabilities_are_the_powers_of_the_sizes(errors, alpha, expected):
    measured = shares(make(len(errors), errors, alpha=alpha), len(errors))

    np.testing.assert_allclose(measured, expected, atol=1e-4)


def test_weights_by_buffer_are_relative_to_the_rarest_item_kept():
    # (1/2)^.2, (1/3)^.2, (1/4)^.2; none above 1 (chainerrl PR #570, seed_rl #3, baselines #1131)
    replay = make(4, [1.0, 2.0, 3.0, 4.0])

    np.testing.assert_allclose(weights(replay, 4), [1, 0.8706, 0.8027, 0.7579], atol=1e-4)
    sample = replay.sample(2_000, 2)
    without = ~(sample.ids == 0).any(axis=1)  # also where the rarest is not in the batch
    assert 0 < without.sum() < 2_000
    assert sample.weight[without].max() < 0.8707


def test_weights_by_batch_are_relative_to_the_rarest_item_of_each_batch():
    # of items 2 and 3: 1 and (3/4)^.2
    sample = make(4, [1.0, 2.0, 3.0, 4.0], norm="batch").sample(2_000, 2)

    both = (sample.ids == [2, 3]).all(axis=1)
    assert both.sum() > 100
    np.testing.assert_allclose(sample.weight[both], [[1, 0.9441]] * both.sum(), atol=1e-4)
    np.testing.assert_array_equal(sample.weight.max(axis=1), 1.0)


def test_with_beta_1_weights_undo_the_probabilities():
    replay = make(4, [1.0, 2.0, 3.0, 4.0], alpha=0.7, beta=1.0)

    product = shares(replay, 4) * weights(replay, 4)

    np.testing.assert_allclose(product / product[0], 1.0, atol=1e-3)


def test_a_new_item_has_priority_1_or_the_largest_kept():
    # The first two have 1; after 0 became 4 and 1 became 9, new ones have 9: 2, 3, 3 of 8.
    replay = make(4)
    replay.add(chunk(0, 2))
    replay.update_priorities(np.array([0]), np.array([4.0]))
    np.testing.assert_allclose(shares(replay, 2), [2 / 3, 1 / 3], atol=1e-4)

    replay.update_priorities(np.array([1]), np.array([9.0]))
    replay.add(chunk(2, 1))

    np.testing.assert_allclose(shares(replay, 3), [2 / 8, 3 / 8, 3 / 8], atol=1e-4)


@pytest.mark.parametrize("norm", ["batch", "buffer"])
def test_errors_of_zero_become_epsilon_and_can_be_drawn_again(norm):
    # All have epsilon, so the new item, at the largest priority, has epsilon as well.
    replay = make(5, [0.0] * 4, norm=norm)
    replay.add(chunk(4, 1))

    np.testing.assert_allclose(shares(replay, 5), 0.2, atol=1e-4)
    np.testing.assert_array_equal(replay.sample(10, 10).weight, 1.0)

    # beside a 1: (1e-6)^(.1 * 2) = 10^-1.2 = .0631
    replay = make(2, [0.0, 1.0], alpha=0.1, beta=2.0, norm=norm)
    np.testing.assert_allclose(weights(replay, 2), [1, 0.0631], atol=1e-4)


def test_each_batch_is_stratified_by_itself():
    # 16 equal items and batches of 8: draw j of each batch is item 2j or 2j + 1.
    ids = make(16, [1.0] * 16).sample(200, 8).ids

    np.testing.assert_array_equal(ids // 2, np.tile(np.arange(8), (200, 1)))
    # within its share each is as likely: of 1,600 draws a half, standard deviation 20
    assert abs(np.count_nonzero(ids % 2) - 800) < 100


def test_the_same_seed_draws_the_same_and_another_seed_others():
    one, again, other = (make(50, np.arange(50.0), seed=seed) for seed in (1, 1, 2))

    for _ in range(3):
        drawn = bits(one.sample(2, 8))
        assert drawn == bits(again.sample(2, 8))
        assert drawn != bits(other.sample(2, 8))


# ---- what priorities reach -----------------------------------------------------------------


def test_a_stale_error_is_counted_and_never_reaches_the_new_occupant_of_the_slot():
    # Rows 0 and 1 are overwritten by 4 and 5 after the draw; 2 and 3 are still kept.
    replay = make(4, [1.0] * 4, alpha=1.0)
    drawn = replay.sample(1, 4).ids
    np.testing.assert_array_equal(drawn, [[0, 1, 2, 3]])
    replay.add(chunk(4, 2))

    replay.update_priorities(drawn, np.array([[1e6, 1e6, 3.0, 1.0]]))

    assert replay.stale == 2
    # 2: 3, 3: 1, 4 and 5: the largest when they came, 1
    np.testing.assert_allclose(shares(replay, 6), [0, 0, 1 / 2, 1 / 6, 1 / 6, 1 / 6], atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_error_that_is_not_finite_is_refused_before_anything_is_written(bad):
    replay, control = make(4, [1.0] * 4), make(4, [1.0] * 4)
    for each in (replay, control):
        each.add(chunk(4, 1))

    with pytest.raises(ValueError, match="1 of 4 TD errors are not finite: give back only"):
        replay.update_priorities(np.array([[0, 1], [2, 3]]), np.array([[9.0, 9.0], [9.0, bad]]))

    assert replay.stale == 0
    assert bits(replay.sample(3, 4)) == bits(control.sample(3, 4))


def test_of_an_item_that_comes_twice_the_last_error_counts():
    replay = make(2, [1.0, 1.0], alpha=1.0)

    replay.update_priorities(np.array([[0, 1, 0]]), np.array([[9.0, 1.0, 3.0]]))

    np.testing.assert_allclose(shares(replay, 2), [0.75, 0.25], atol=1e-4)


@pytest.mark.parametrize(("ratio", "updates"), [(0.25, 50), (2.0, 400), (0.29, 58), (None, 200)])
def test_beta_goes_from_its_first_to_its_last_value_over_the_updates_of_the_budget(ratio, updates):
    # (300 - 100) env steps * ratio; two items of p 1 and 4: by buffer the second weighs .5^beta
    config = small(
        "dqn",
        "CartPole-v1",
        lockstep=False,
        replay__priority_exponent=0.5,
        replay__importance_norm="buffer",
        learner__updates_per_env_step=ratio,
    )
    store = TransitionStore(config.replay.capacity, LAYOUT)
    replay = Replay(store, build_sampler(config), np.random.SeedSequence(0))
    replay.add(chunk(0, 2))
    replay.update_priorities(np.array([0, 1]), np.array([1.0, 4.0]) - EPSILON)

    calls = [replay.sample(2, 2) for _ in range(updates // 2)]

    weight = np.concatenate([sample.weight for sample in calls])[:, 1]  # its stratum is item 1's
    np.testing.assert_allclose(-np.log2(weight), np.linspace(0.4, 1.0, updates), atol=1e-5)
    assert replay.sample(1, 2).weight[0, 1] == 0.5  # and stays at 1


def test_an_exponent_of_0_draws_uniformly():
    assert isinstance(build_sampler(small("dqn", "CartPole-v1")), Uniform)


# ---- stores that refuse rows ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_may_not_be_drawn_never_are_and_the_others_keep_their_proportions(seed):
    # Without 1: 1, 1.7321, 2 of 4.7321; of 23,000 redraws, not stratified: deviation .0016
    replay = make(4, [1.0, 2.0, 3.0, 4.0], store=Picky(4, {0, 2, 3}), seed=seed)

    np.testing.assert_allclose(shares(replay, 4), [0.2113, 0, 0.3660, 0.4226], atol=0.008)
    # and now that its mass is gone
    np.testing.assert_allclose(shares(replay, 4), [0.2113, 0, 0.3660, 0.4226], atol=1e-4)
    replay.check_valid()


def test_the_first_draw_of_all_is_in_proportion_although_refused_rows_are_still_there():
    # 1 to 4 beside a refused 95; one draw from each of 1,000 replays: standard deviation .0126
    drawn = [
        make(3, [1.0, 95.0, 4.0], alpha=1.0, store=Picky(3, {0, 2}), seed=seed).sample(1, 1).ids
        for seed in range(1_000)
    ]

    assert np.mean(np.equal(drawn, 2)) == pytest.approx(0.8, abs=5 * 0.0126)
    assert not np.any(np.equal(drawn, 1))


def test_rows_can_be_refused_later_and_where_all_are_that_is_said():
    store = Picky(4, {0, 1, 2, 3})
    replay = make(4, [1.0] * 4, store=store)
    np.testing.assert_array_equal(replay.sample(1, 4).ids, [[0, 1, 2, 3]])

    store.drawable = {2}
    np.testing.assert_array_equal(replay.sample(2, 4).ids, 2)

    store.drawable = {}
    with pytest.raises(ValueError, match=r"none of the 4 rows kept can be drawn: raise learner\."):
        replay.sample(1, 1)


# ---- saving, large numbers, threads --------------------------------------------------------


@pytest.mark.parametrize("norm", ["batch", "buffer"])
@pytest.mark.parametrize("count", [5, 83])  # not full; overwritten
def test_a_restored_replay_draws_the_same(norm, count):
    def scheduled(seed):
        sampler = Prioritized(50, exponent=0.6, importance=lambda k: 1 - 0.99**k, norm=norm)
        return Replay(TransitionStore(50, LAYOUT), sampler, np.random.SeedSequence(seed))

    replay, restored, oldest = scheduled(1), scheduled(2), max(0, count - 50)
    for first in range(count):
        replay.add(chunk(first, 1))
        replay.update_priorities(replay.sample(1, 3).ids, np.sin(first + np.arange(3.0)))

    restored.restart(oldest)
    for first in range(oldest, count, 7):
        restored.append(replay.rows(first, min(first + 7, count), 10**6)[1])
    restored.restore(replay.state())

    for first in range(count, count + 40, 2):
        drawn = replay.sample(2, 6)
        assert bits(drawn) == bits(restored.sample(2, 6))
        for each in (replay, restored):
            each.update_priorities(drawn.ids, np.cos(first + np.arange(12.0)).reshape(2, 6))
            each.add(chunk(first, 2))
            each.check_valid()


def test_a_replay_that_is_emptied_forgets_its_priorities():
    replay = make(4, [9.0] * 4)

    replay.restart(0)
    replay.add(chunk(0, 1))

    np.testing.assert_array_equal(replay.sample(1, 8).ids, 0)


def test_numbers_beyond_32_bits_find_their_rows_and_priorities():
    # google/dopamine's ReplayItemID was an int32. Kept are start + 3 to start + 9, with 1 to 7.
    replay, start = make(7, alpha=1.0), 2**31 + 5
    replay.restart(start)
    for number in range(start, start + 10):
        replay.add(chunk(number, 1))

    replay.update_priorities(start + np.arange(2, 10), np.arange(8.0))
    sample = replay.sample(1, 28_000)

    assert replay.stale == 1
    np.testing.assert_array_equal(sample.rows["int32"][..., 0], sample.ids % 2**24)
    np.testing.assert_allclose(
        np.bincount(sample.ids[0] - start)[3:], np.arange(1, 8) * 1e3, atol=2
    )


@pytest.fixture
def often_switched():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_add_draw_and_give_back_priorities_leave_everything_whole(often_switched):
    # 1,100 slots: a tree of two levels, whose nodes are shared by rows that different threads set
    capacity, stop, failed, drawn = 1_100, threading.Event(), [], collections.deque(maxlen=4)
    replay = make(capacity, [1.0] * 50, norm="buffer")
    sample = replay.sample(4, 64)
    drawn.append(sample.ids)

    def repeat(step):
        try:
            number = 0
            while not stop.is_set():
                step(number)
                number += 1
        except BaseException as error:
            failed.append(error)

    def write(number):
        replay.add(chunk(50 + 50 * number, 50))

    def give_back(number):
        ids = drawn[-1]
        replay.update_priorities(ids, np.sin(ids + number))

    threads = [threading.Thread(target=repeat, args=(step,)) for step in (write, give_back)]
    for thread in threads:
        thread.start()
    torn, samples, deadline = 0, 0, time.monotonic() + LONG
    try:
        while samples < 400 or replay.stale < 1_000 or sample.total < 10 * capacity:
            sample = replay.sample(4, 64)
            drawn.append(sample.ids)
            number = (sample.ids % 2**24)[..., None]
            for leaf in leaves(LAYOUT.unpack(sample.rows)):
                torn += np.count_nonzero(leaf.reshape(4, 64, -1) != number)
            assert sample.total - capacity <= sample.ids.min()
            assert sample.ids.max() < sample.total
            assert np.all((sample.weight > 0) & (sample.weight <= 1))
            replay.check_valid()
            assert not failed and time.monotonic() < deadline
            samples += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join(LONG)

    assert failed == []
    assert torn == 0
    replay.check_valid()
