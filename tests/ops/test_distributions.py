"""Golden tests of the distributions and explorers; the numbers are worked in the comments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_async.ops.distributions import (
    TanhNormal,
    epsilon_greedy,
    gaussian_noise,
    log_tanh_jacobian,
    softmax_policy,
)

KEY = jax.random.key(0)


def f32(*values):
    return np.array(values, np.float32)


def test_the_log_jacobian_of_tanh_is_exact_where_tanh_saturates():
    # rlax #11, #54: log(1 - tanh(u)^2) itself is log 0 beyond |u| = 9 in float32.
    # 2 (log 2 - u - log(1 + exp(-2 u))): at 10: 1.3863 - 20 - 0; at .5: 1.3863 - 1 - .6265;
    # at -20: 1.3863 + 40 - 80
    values = log_tanh_jacobian(f32(10, 0.5, -20))

    np.testing.assert_allclose(values, [-18.6137, -0.2402, -38.6137], atol=5e-5)


def test_the_log_jacobian_of_tanh_has_finite_gradients():
    gradients = jax.jit(jax.vmap(jax.grad(log_tanh_jacobian)))(f32(10, 0.5, -20))

    # -2 tanh(u); tanh(.5) = .462117
    np.testing.assert_allclose(gradients, [-2, -0.924234, 2], atol=1e-5)


def test_the_log_probability_subtracts_the_correction():
    # autonomous-learning-library #139, ElegantRL #296: adding it would give -1.2841
    policy = TanhNormal(f32([0]), f32([0]))

    log_prob = policy.log_prob(f32([0.5]))

    # -.5 * .25 - .918939 + .240229
    np.testing.assert_allclose(log_prob, [-0.8037], atol=5e-5)


def test_the_log_probability_sums_over_action_dimensions():
    policy = TanhNormal(f32([0, 1], [0, 0]), f32([0, np.log(2)], [0, 0]))

    log_prob = policy.log_prob(f32([0.5, 2], [0.5, 0.5]))

    # second dimension of row 0: z = (2 - 1) / 2: -.125 - log 2 - .918939 = -1.737086;
    # log Jacobian at 2: 2 (.693147 - 2 - log(1 + exp(-4))) = -2.650006; together .912920
    np.testing.assert_allclose(log_prob, [-0.803710 + 0.912920, -1.607420], atol=5e-5)


def test_the_probabilities_of_all_actions_sum_to_one():
    u = np.linspace(-8, 8, 4001, dtype=np.float32)[:, None]
    policy = TanhNormal(np.full_like(u, 0.3), np.full_like(u, -0.5))

    density = np.exp(policy.log_prob(u))  # over a, and da = (1 - tanh(u)^2) du

    np.testing.assert_allclose(np.sum(density * (1 - np.tanh(u[:, 0]) ** 2)) * 0.004, 1, atol=1e-4)


def test_a_saturated_actor_has_a_finite_log_probability_and_gradient():
    # ray #14878: atanh of the action, which is exactly 1 here, is infinite
    mean, log_std = f32([20]), f32([0])

    def log_prob_of_sample(mean):
        action, log_prob = TanhNormal(mean, log_std).sample_and_log_prob(KEY)
        return log_prob[0], action

    differentiate = jax.jit(jax.value_and_grad(log_prob_of_sample, has_aux=True))
    (log_prob, action), gradient = differentiate(mean)

    u = 20 + np.float64(jax.random.normal(KEY, (1, 1))[0, 0])
    # -z^2 / 2 - .918939 - (1.386294 - 2 u); the mean shifts u with the noise fixed: 2 tanh(u)
    expected = -0.5 * (u - 20) ** 2 - 0.918939 - 1.386294 + 2 * u
    np.testing.assert_array_equal(action, [[1]])
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, [[2]], rtol=1e-5)


def test_the_log_probability_of_a_sample_is_exact_for_a_very_narrow_policy():
    # exp(-20) = 2e-9 is below the spacing of float32 near .5, so mean + std * noise is mean again:
    # the noise cannot be recovered from the sum
    mean, log_std = np.full((4, 1), 0.5, np.float32), np.full((4, 1), -20, np.float32)

    _, log_prob = TanhNormal(mean, log_std).sample_and_log_prob(KEY)

    noise = np.asarray(jax.random.normal(KEY, (4, 1)))[:, 0]
    # -z^2 / 2 + 20 - .918939 + .240229
    np.testing.assert_allclose(log_prob, -0.5 * noise**2 + 19.32129, atol=1e-3)


def test_a_sample_comes_with_its_own_log_probability():
    mean, log_std = f32([0.1, -0.4], [2, 1]), f32([-1, 0.3], [0, -2])
    policy = TanhNormal(mean, log_std)

    action, log_prob = policy.sample_and_log_prob(KEY)

    assert action.shape == (2, 2) and log_prob.shape == (2,)
    expected = policy.log_prob(jnp.arctanh(action))  # not saturated here
    np.testing.assert_allclose(log_prob, expected, atol=1e-3)


def test_samples_are_differentiable_in_mean_and_spread():
    def action(mean, log_std):
        return TanhNormal(mean[None], log_std[None]).sample_and_log_prob(KEY)[0][0, 0]

    by_mean, by_log_std = jax.jit(jax.grad(action, argnums=(0, 1)))(f32(0), f32(0))

    noise = np.asarray(jax.random.normal(KEY, (1, 1)))[0, 0]
    slope = 1 - np.tanh(noise) ** 2  # u = noise; du/dmean = 1, du/dlog_std = noise
    np.testing.assert_allclose(by_mean, [slope], rtol=1e-5)
    np.testing.assert_allclose(by_log_std, [slope * noise], rtol=1e-5)


def test_the_mode_is_the_squashed_mean():
    policy = TanhNormal(f32([0, 0.5, -20]), f32([0, 0, 0]))

    np.testing.assert_allclose(policy.mode(), [[0, 0.462117, -1]], atol=1e-6)


def test_explore_scales_the_spread_of_each_row():
    mean = np.full((3, 4096), 0.2, np.float32)
    policy = TanhNormal(mean, np.full_like(mean, np.log(0.1)))

    action = jax.jit(TanhNormal.sample)(policy, KEY, f32(0, 1, 3))

    u = np.arctanh(np.asarray(action))
    np.testing.assert_array_equal(action[0], policy.mode()[0])
    # standard error of a deviation from 4096 draws: 1 / sqrt(8192) = 1.1 %
    np.testing.assert_allclose(u.std(axis=1), [0, 0.1, 0.3], rtol=0.05, atol=1e-6)
    np.testing.assert_allclose(u.mean(axis=1), [0.2, 0.2, 0.2], atol=0.02)


def test_explore_belongs_to_rows_also_where_there_are_as_many_action_dimensions():
    # [B] against [B, A] broadcasts in silence where B = A: then columns would be greedy
    zeros, explore = np.zeros((4, 4), np.float32), f32(0, 1, 0, 1)
    q = np.tile(f32(0, 0.1, 0, 0), (4, 1))

    @jax.jit
    @jax.vmap
    def act(key):
        squashed = TanhNormal(zeros, zeros).sample(key, explore)
        noisy = gaussian_noise(key, zeros, explore)
        return squashed, noisy, softmax_policy(key, q, explore)

    squashed, noisy, softmax = (np.asarray(a) for a in act(jax.random.split(KEY, 32)))

    for actions in squashed, noisy:
        np.testing.assert_array_equal(actions[:, [0, 2]], 0)
        assert np.all(actions[:, [1, 3]] != 0)
    np.testing.assert_array_equal(softmax[:, [0, 2]], 1)
    assert set(softmax[:, 1]) == set(softmax[:, 3]) == {0, 1, 2, 3}


DRAWS = 8192  # standard error of a frequency: at most sqrt(.25 / 8192) = .0055


def frequencies(explorer, q, explore):
    action = jax.jit(explorer)(
        KEY, np.tile(f32(*q), (DRAWS, 1)), np.full(DRAWS, explore, np.float32)
    )
    assert action.dtype == np.int32 and action.shape == (DRAWS,)
    return np.bincount(action, minlength=len(q)) / DRAWS


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [
        (0, [0, 0, 1, 0]),
        (0.4, [0.1, 0.1, 0.7, 0.1]),  # best: 1 - .4 + .4 / 4; each other: .4 / 4
        (1, [0.25, 0.25, 0.25, 0.25]),
    ],
)
def test_epsilon_greedy_mixes_the_best_action_with_uniform_ones(epsilon, expected):
    frequency = frequencies(epsilon_greedy, [0, 0, 5, 0], epsilon)

    np.testing.assert_allclose(frequency, expected, atol=0.02 if epsilon else 0)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (0, [0, 1, 0, 0]),
        (0.5, [1 / 12, 9 / 12, 1 / 12, 1 / 12]),  # exp(2 log 3) = 9
        (1, [1 / 6, 3 / 6, 1 / 6, 1 / 6]),  # exp(log 3) = 3
    ],
)
def test_softmax_draws_actions_by_their_exponentials(temperature, expected):
    frequency = frequencies(softmax_policy, [0, np.log(3), 0, 0], temperature)

    np.testing.assert_allclose(frequency, expected, atol=0.02 if temperature else 0)


def test_softmax_at_temperature_0_tells_close_values_apart():
    np.testing.assert_array_equal(frequencies(softmax_policy, [1, 1 + 1e-6, 1, 0], 0), [0, 1, 0, 0])


def test_gaussian_noise_has_each_rows_deviation_and_stays_in_bounds():
    action = np.zeros((3, 4096), np.float32)

    noisy = np.asarray(jax.jit(gaussian_noise)(KEY, action, f32(0, 0.1, 10)))

    np.testing.assert_array_equal(noisy[0], 0)
    np.testing.assert_allclose(noisy[1].std(), 0.1, rtol=0.05)
    assert np.abs(noisy).max() == 1  # P(|N(0, 10^2)| > 1) = .92
    np.testing.assert_allclose(np.mean(np.abs(noisy[2]) == 1), 0.92, atol=0.02)


ROW, COLUMN, MATRIX = (np.ones(shape, np.float32) for shape in [(3,), (3, 1), (3, 2)])


@pytest.mark.parametrize(
    "call",
    [
        lambda: epsilon_greedy(KEY, MATRIX, COLUMN),
        lambda: epsilon_greedy(KEY, ROW, ROW),
        lambda: softmax_policy(KEY, MATRIX, COLUMN),
        lambda: softmax_policy(KEY, ROW, ROW),
        lambda: gaussian_noise(KEY, MATRIX, COLUMN),
        lambda: gaussian_noise(KEY, MATRIX, np.float32(1)),
        lambda: TanhNormal(MATRIX, MATRIX).sample(KEY, COLUMN),
        lambda: TanhNormal(ROW, ROW).sample(KEY, ROW),
        lambda: TanhNormal(MATRIX, MATRIX).log_prob(COLUMN),
        lambda: TanhNormal(MATRIX, MATRIX).log_prob(ROW),
    ],
)
def test_shapes_that_would_broadcast_in_silence_are_refused(call):
    with pytest.raises(AssertionError, match=r"rank|shape"):
        call()
