"""DQN's loss against plain numpy, its target network, its explorers and the dueling network."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_async.agents.dqn import DQN, DQNConfig
from jaxrl_async.checks import ConfigError
from jaxrl_async.types import ArraySpec, Batch, EnvSpec, Transition

B, A = 3, 3
KEY = jax.random.key(3)
SPEC = EnvSpec(ArraySpec((2,), "float32"), A, discrete=True)
CONFIG = DQNConfig(hidden=(4,), target_period=3, learning_rate=0.01)


def make(**changes):
    return DQN(dataclasses.replace(CONFIG, **changes), SPEC)


@pytest.fixture(scope="module")
def state():
    """A fresh state whose target network differs from the network."""
    init = jax.jit(make().init)
    state, other = init(jax.random.key(0)), init(jax.random.key(1))
    return dataclasses.replace(state, target_q=other.q.params)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    transition = Transition(
        observation=rng.normal(size=(B, 2)).astype(np.float32),
        action=np.array([2, 0, 1], np.int32),
        reward=np.array([1, -2, 3], np.float32),  # errors within and beyond Huber's threshold
        discount=np.array([0.9, 0.81, 0], np.float32),
        next_observation=rng.normal(size=(B, 2)).astype(np.float32),
    )
    return Batch(transition, np.array([1, 0.5, 2], np.float32))


def values(params, observation):
    """Q [B, A], written out."""
    layers = jax.tree.map(np.asarray, params["params"])
    first, last = layers["MLP_0"]["Dense_0"], layers["Dense_0"]
    hidden = np.maximum(observation @ first["kernel"] + first["bias"], 0)
    return hidden @ last["kernel"] + last["bias"]


def half_square(error):
    return error**2 / 2


def huber(error):
    return np.where(np.abs(error) <= 1, error**2 / 2, np.abs(error) - 0.5)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("loss", "of_error"), [("huber", huber), ("squared", half_square)])
def test_the_loss_equals_numpys(state, batch, double, loss, of_error):
    agent, t = make(double=double, loss=loss), batch.transition

    found, (value, td_error) = agent.q_loss(state.q.params, state, batch)

    rows = np.arange(B)
    next_q = values(state.target_q, t.next_observation)
    selector = values(state.q.params, t.next_observation) if double else next_q
    target = t.reward + t.discount * next_q[rows, selector.argmax(axis=1)]
    expected = values(state.q.params, t.observation)[rows, t.action]
    error = target - expected
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(td_error, np.abs(error), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found, (batch.weight * of_error(error)).mean(), rtol=1e-4)


def test_double_selects_otherwise_than_the_target_network_would(state, batch):
    online = values(state.q.params, batch.transition.next_observation).argmax(axis=1)
    target = values(state.target_q, batch.transition.next_observation).argmax(axis=1)

    # otherwise the test above could not tell double from plain Q-learning
    assert np.any((online != target) & (batch.transition.discount > 0))


def test_a_hard_target_copies_exactly_and_only_every_target_period(state, batch):
    update = jax.jit(make(target_period=3, tau=1.0).update)

    states = [state]
    for _ in range(4):
        states.append(update(states[-1], batch, KEY)[0])

    _, first, second, third, fourth = states
    chex.assert_trees_all_equal(first.target_q, state.target_q)
    chex.assert_trees_all_equal(second.target_q, state.target_q)
    chex.assert_trees_all_equal(third.target_q, third.q.params)
    chex.assert_trees_all_equal(fourth.target_q, third.q.params)


def test_a_soft_target_moves_by_tau_at_every_update(state, batch):
    new, _ = jax.jit(make(target_period=1, tau=0.25).update)(state, batch, KEY)

    jax.tree.map(
        lambda target, old, q: np.testing.assert_allclose(
            target, 0.75 * old + 0.25 * q, rtol=1e-5, atol=1e-6
        ),
        new.target_q,
        state.target_q,
        new.q.params,
    )


def test_exploration_falls_linearly_and_then_stays():
    agent = make(exploration=1.0, exploration_end=0.05, exploration_steps=10_000)

    schedule = [agent.explore(env_steps) for env_steps in (0, 5_000, 10_000, 20_000)]

    np.testing.assert_allclose(schedule, [1, 0.525, 0.05, 0.05])  # half: (1 + .05) / 2


def test_a_softmax_at_temperature_0_is_greedy_row_by_row(state):
    agent = make(explorer="softmax")
    observation = np.random.default_rng(1).normal(size=(A, 2)).astype(np.float32)  # B = A
    mixed = np.array([0, 100, 0], np.float32)
    act = jax.jit(agent.act)

    drawn = [
        np.asarray(act(state.q.params, (), observation, jax.random.key(seed), mixed)[0])
        for seed in range(16)
    ]

    greedy = values(state.q.params, observation).argmax(axis=1)
    np.testing.assert_array_equal(np.array(drawn)[:, [0, 2]], np.tile(greedy[[0, 2]], (16, 1)))
    assert {row[1] for row in drawn} == {0, 1, 2}


def test_epsilon_greedy_at_0_takes_the_best_action(state):
    observation = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32)

    action, _ = make().act(state.q.params, (), observation, KEY, np.zeros(8, np.float32))

    np.testing.assert_array_equal(action, values(state.q.params, observation).argmax(axis=1))


def test_dueling_advantages_are_mean_free():
    agent = make(dueling=True)
    params = jax.jit(agent.init)(jax.random.key(0)).q.params
    observation = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)
    q = agent.q(params, observation)

    def shifted(layer, by):
        layers = params["params"]
        bias = layers[layer]["bias"] + jnp.asarray(by, jnp.float32)
        return agent.q({"params": layers | {layer: layers[layer] | {"bias": bias}}}, observation)

    # the value alone sets the mean over actions; a shift of all advantages is no change at all,
    # and 3 more for one of three moves it by 3 - 1 and the others by -1
    np.testing.assert_allclose(shifted("Dense_0", [5]), q + 5, atol=1e-5)
    np.testing.assert_allclose(shifted("Dense_1", [5, 5, 5]), q, atol=1e-5)
    np.testing.assert_allclose(shifted("Dense_1", [3, 0, 0]), q + jnp.array([2, -1, -1]), atol=1e-5)


def test_boxes_are_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"action space = 'Box': use Discrete, or .* sac or td3"):
        DQN(DQNConfig(), SPEC._replace(discrete=False))
