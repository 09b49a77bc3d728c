"""Golden tests of the TD targets and errors; the numbers are worked in the comments."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_async.ops import td


def f32(*values):
    return jnp.array(values, jnp.float32)


def test_a_time_limit_bootstraps_and_a_termination_does_not():
    # openai/baselines #436, skrl #449: a truncated row keeps its discount, a terminated one has 0
    reward, discount, value = f32(1, 1), f32(0.99, 0), f32(10, 10)

    target = td.bootstrap(reward, discount, value)

    np.testing.assert_allclose(target, [10.9, 1.0], rtol=1e-6)  # 1 + .99 * 10, 1 + 0


def test_the_value_of_a_state_after_the_end_is_not_read():
    reward, discount = f32(1, 2, 3, 4), f32(0, 0, 0, 0.5)
    value = f32(np.inf, -np.inf, np.nan, 10)  # 0 * inf and 0 * NaN would be NaN

    target = td.bootstrap(reward, discount, value)

    np.testing.assert_array_equal(target, [1, 2, 3, 9])  # 4 + .5 * 10


def test_the_value_of_a_state_after_the_end_has_no_gradient():
    def total(value):
        return td.bootstrap(f32(1, 1), f32(0, 0.5), value).sum()

    gradient = jax.grad(total)(f32(np.inf, 2))

    np.testing.assert_array_equal(gradient, [0, 0.5])


def test_q_target_takes_the_best_next_action():
    reward, discount = f32(1, -1, 2), f32(0.9, 0.81, 0)
    next_q = f32([1, 3], [-2, -4], [7, 8])

    target = td.q_target(reward, discount, next_q)

    # 1 + .9 * 3, -1 + .81 * -2, 2 + 0
    np.testing.assert_allclose(target, [3.7, -2.62, 2], rtol=1e-6)


def test_double_q_target_selects_online_and_evaluates_with_the_target_network():
    # keon/deep-q-learning #35: selecting with the target network too would give 10
    next_q, next_q_online = f32([10, 2]), f32([1, 3])

    target = td.double_q_target(f32(0), f32(1), next_q, next_q_online)

    np.testing.assert_array_equal(target, [2])  # online's best is the second, worth 2


def test_double_q_target_discounts_each_row_by_itself():
    next_q, next_q_online = f32([10, 2], [10, 2], [10, 2]), f32([1, 3], [3, 1], [3, 1])

    target = td.double_q_target(f32(1, 1, 1), f32(0.5, 0.5, 0), next_q, next_q_online)

    np.testing.assert_array_equal(target, [2, 6, 1])  # 1 + .5 * 2, 1 + .5 * 10, 1 + 0


def test_clipped_double_q_target_believes_the_smallest_critic():
    reward, discount = f32(1, 1, 1), f32(0.9, 0, 0.81)
    next_q = f32([10, 10, 2], [20, 20, 1])  # [N, B]

    target = td.clipped_double_q_target(reward, discount, next_q, bonus=0.5)

    # 1 + .9 (10 + .5), 1 + 0, 1 + .81 (1 + .5)
    np.testing.assert_allclose(target, [10.45, 1, 2.215], rtol=1e-6)


def test_clipped_double_q_target_adds_each_rows_own_bonus_and_by_default_none():
    reward, discount, next_q = f32(0, 0), f32(1, 0.5), f32([3, 4])  # one critic

    without = td.clipped_double_q_target(reward, discount, next_q)
    with_bonus = td.clipped_double_q_target(reward, discount, next_q, f32(-1, 2))

    np.testing.assert_array_equal(without, [3, 2])
    np.testing.assert_array_equal(with_bonus, [2, 3])  # 3 - 1, .5 (4 + 2)


def test_clipped_double_q_target_ignores_a_bonus_after_the_end():
    target = td.clipped_double_q_target(f32(1), f32(0), f32([np.nan]), f32(-np.inf))

    np.testing.assert_array_equal(target, [1])


@pytest.mark.parametrize(
    "target",
    [
        lambda next_q: td.q_target(f32(1, 1), f32(1, 1), next_q),
        lambda next_q: td.double_q_target(f32(1, 1), f32(1, 1), next_q, next_q),
        lambda next_q: td.clipped_double_q_target(f32(1, 1), f32(1, 1), next_q),
    ],
    ids=["q", "double_q", "clipped_double_q"],
)
def test_gradients_stop_at_a_target(target):
    gradient = jax.grad(lambda next_q: target(next_q).sum())(f32([1, 2], [3, 4]))

    np.testing.assert_array_equal(gradient, np.zeros((2, 2)))


def test_select_takes_the_value_of_each_rows_action():
    q = f32([1, 2, 3], [4, 5, 6])

    value = td.select(q, np.array([2, 0], np.int32))

    np.testing.assert_array_equal(value, [3, 4])


def test_squared_is_half_the_square():
    np.testing.assert_array_equal(td.squared(f32(-3, 0, 2)), [4.5, 0, 2])


def test_huber_is_quadratic_up_to_the_threshold_and_linear_beyond():
    error = f32(-3, -1, -0.5, 0, 2)

    # beyond 1: |e| - .5; within: e^2 / 2
    np.testing.assert_array_equal(td.huber(error), [2.5, 0.5, 0.125, 0, 1.5])
    # threshold 2: 2 * 2 / 2 + 2 (3 - 2) = 4; all others are within
    np.testing.assert_array_equal(td.huber(error, 2.0), [4, 0.5, 0.125, 0, 2])


def test_the_gradient_of_huber_is_the_error_clipped_to_the_threshold():
    gradient = jax.jit(jax.vmap(jax.grad(td.huber)))(f32(-3, -0.5, 0, 0.25, 7))

    np.testing.assert_array_equal(gradient, [-1, -0.5, 0, 0.25, 1])


def test_ensemble_squared_error_sums_over_critics_and_averages_over_rows():
    q = f32([1, 2], [3, 6])  # [N, B]
    target, weight = f32(2, 4), f32(1, 0.5)

    loss, td_error = td.ensemble_squared_error(q, target, weight)

    # errors [1, 2] and [-1, -2]: half squares [.5, 2], weighted [.5, 1], mean .75, twice
    np.testing.assert_allclose(loss, 1.5, rtol=1e-6)
    np.testing.assert_array_equal(td_error, [1, 2])  # (1 + 1) / 2, (2 + 2) / 2


def test_the_td_error_is_the_distance_of_target_and_prediction():
    _, td_error = td.ensemble_squared_error(f32([1, 5], [3, 5]), f32(4, 4), f32(1, 1))

    np.testing.assert_array_equal(td_error, [2, 1])  # (3 + 1) / 2, (1 + 1) / 2


def test_a_perfect_prediction_has_no_loss_and_a_column_of_targets_is_refused():
    # acme #277, RLinf #1568: [B] against [B, 1] broadcasts to [B, B], and the loss is 1.3333
    q, target, weight = f32([1, 2, 3]), f32(1, 2, 3), f32(1, 1, 1)

    loss, _ = td.ensemble_squared_error(q, target, weight)

    np.testing.assert_array_equal(loss, 0)
    with pytest.raises(AssertionError, match="rank"):
        td.ensemble_squared_error(q, target[:, None], weight)


ROW, COLUMN, MATRIX = (np.ones(shape, np.float32) for shape in [(3,), (3, 1), (3, 2)])


@pytest.mark.parametrize(
    "call",
    [
        lambda: td.bootstrap(COLUMN, ROW, ROW),
        lambda: td.bootstrap(ROW, COLUMN, ROW),
        lambda: td.bootstrap(ROW, ROW, COLUMN),
        lambda: td.bootstrap(ROW, ROW, ROW[:1]),
        lambda: td.q_target(COLUMN, ROW, MATRIX),
        lambda: td.q_target(ROW, ROW, ROW),
        lambda: td.q_target(ROW, ROW, MATRIX[:1]),
        lambda: td.double_q_target(ROW, COLUMN, MATRIX, MATRIX),
        lambda: td.double_q_target(ROW, ROW, MATRIX, COLUMN),
        lambda: td.clipped_double_q_target(COLUMN, ROW, MATRIX.T),
        lambda: td.clipped_double_q_target(ROW, ROW, MATRIX),  # [B, N] for [N, B]
        lambda: td.clipped_double_q_target(ROW, ROW, MATRIX.T, COLUMN),
        lambda: td.select(MATRIX, np.zeros((3, 1), np.int32)),
        lambda: td.ensemble_squared_error(MATRIX.T, ROW, COLUMN),
        lambda: td.ensemble_squared_error(MATRIX.T, ROW, ROW[:1]),
        lambda: td.ensemble_squared_error(MATRIX, ROW, ROW),  # [B, N] for [N, B]
        lambda: td.ensemble_squared_error(ROW, ROW, ROW),
    ],
)
def test_shapes_that_would_broadcast_in_silence_are_refused(call):
    with pytest.raises(AssertionError, match=r"rank|shape"):
        call()


def test_actions_that_are_no_integers_are_refused():
    with pytest.raises(AssertionError, match="type"):
        td.select(MATRIX, ROW)


def test_every_function_gives_float32_from_float32():
    target = td.clipped_double_q_target(ROW, ROW, MATRIX.T, 0.5)
    loss, td_error = td.ensemble_squared_error(MATRIX.T, ROW, ROW)

    chex.assert_type([target, loss, td_error, td.huber(ROW), td.squared(ROW)], np.float32)
