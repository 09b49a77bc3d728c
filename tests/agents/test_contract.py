"""What every agent of ``AGENTS`` promises; see ``jaxrl_async/agents/agent.py``.

One compiled update and one compiled act per agent, shared by all tests, with the state donated as
the learner does it: a state given to ``Case.update`` must not be used again.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_async.agents import AGENTS
from jaxrl_async.agents.agent import Trainable
from jaxrl_async.checks import ConfigError
from jaxrl_async.types import ArraySpec, Batch, EnvSpec, Transition

B, ACTIONS = 4, 4  # as many rows as actions: [B] against [B, A] would broadcast in silence
KEY = jax.random.key(7)

every_agent = pytest.mark.parametrize("name", list(AGENTS))


class Case(NamedTuple):
    agent: Any
    update: Callable[..., Any]  # jitted, the state donated, traced at most once
    act: Callable[..., Any]  # jitted

    def fresh(self) -> Any:
        return self.agent.init(jax.random.key(0))

    def actions(self, params, observation, key, explore) -> np.ndarray:
        carry = self.agent.initial_carry(B)
        explore = np.asarray(explore, np.float32)
        return np.asarray(self.act(params, carry, observation, key, explore)[0])


def make(name: str, **changes: Any) -> Any:
    """The agent with one layer of 16, for whichever kind of actions it takes."""
    preset = AGENTS[name]
    config = dataclasses.replace(preset.config, **{"hidden": (16,)} | changes)
    observation = (("camera", ArraySpec((2, 2), "uint8")), ("joints", ArraySpec((3,), "float32")))
    try:
        return preset.agent(config, EnvSpec(observation, ACTIONS, discrete=False))
    except ConfigError:
        return preset.agent(config, EnvSpec(observation, ACTIONS, discrete=True))


@functools.cache
def case(name: str) -> Case:
    agent = make(name)

    def update(state, batch, key):
        return agent.update(state, batch, key)

    update.__name__ = f"update_of_{name}"  # by which chex tells the traces of functions apart
    once = chex.assert_max_traces(update, n=1)
    return Case(agent, jax.jit(once, donate_argnums=0), jax.jit(agent.act))


def observations(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "camera": rng.integers(0, 3, (B, 2, 2), np.uint8),
        "joints": rng.normal(size=(B, 3)).astype(np.float32),
    }


def make_batch(spec: EnvSpec, **changes: Any) -> Batch:
    """Four rows, the last one the end of an episode."""
    rng = np.random.default_rng(0)
    if spec.discrete:
        action = rng.integers(0, ACTIONS, B, np.int32)
    else:
        action = rng.uniform(-1, 1, (B, ACTIONS)).astype(np.float32)
    transition = Transition(
        observation=observations(rng),
        action=action,
        reward=rng.normal(size=B).astype(np.float32),
        discount=np.array([0.99, 0.99, 0.99, 0], np.float32),
        next_observation=observations(rng),
    )
    weight = changes.pop("weight", np.ones(B, np.float32))
    return Batch(transition._replace(**changes), weight)


def trainables(state: Any) -> dict[str, Trainable]:
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return {name: part for name, part in fields.items() if isinstance(part, Trainable)}


def critic(state: Any) -> Trainable:
    """The part that descends the TD error."""
    return trainables(state)["q" if hasattr(state, "q") else "critic"]


def host(tree: Any) -> Any:
    """A copy that donation cannot delete."""
    return jax.tree.map(np.array, tree)


@every_agent
def test_agents_made_alike_are_equal_and_hashable(name):
    first, second, other = make(name), make(name), make(name, learning_rate=0.5)

    assert first == second and hash(first) == hash(second)
    assert first != other


@every_agent
def test_the_state_holds_arrays_only(name):
    agent, state = case(name).agent, case(name).fresh()

    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    assert state.step.shape == () and state.step.dtype == jnp.int32 and state.step == 0
    chex.assert_trees_all_equal(agent.actor_params(state), agent.actor_params(case(name).fresh()))


@every_agent
def test_another_key_gives_other_parameters(name):
    agent = case(name).agent

    one, two = (agent.actor_params(agent.init(jax.random.key(seed))) for seed in (1, 2))

    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True))


@every_agent
def test_three_updates_are_traced_once_and_keep_the_states_structure(name):
    agent, update, _ = case(name)
    state, batch = case(name).fresh(), make_batch(agent.spec)
    before = jax.tree.map(jax.typeof, state)  # shape, dtype and weak type

    for _ in range(3):
        state, info = update(state, batch, KEY)

    assert jax.tree.map(jax.typeof, state) == before
    assert state.step == 3
    assert info.td_error.shape == (B,) and info.td_error.dtype == jnp.float32
    assert all(metric.shape == () for metric in info.metrics.values())
    assert all(part.skipped == 0 for part in trainables(state).values())
    chex.assert_tree_all_finite(state)


@every_agent
def test_an_update_changes_the_critic_and_is_a_function_of_its_arguments(name):
    agent, update, _ = case(name)
    batch, before = make_batch(agent.spec), host(critic(case(name).fresh()).params)

    first, first_info = update(case(name).fresh(), batch, KEY)
    second, second_info = update(case(name).fresh(), batch, KEY)

    chex.assert_trees_all_equal((first, first_info), (second, second_info))
    changed = jax.tree.map(lambda a, b: np.any(a != b), critic(first).params, before)
    assert all(jax.tree.leaves(changed))


@every_agent
def test_a_fresh_state_can_be_donated_and_really_is(name):
    state = case(name).fresh()
    kept = host(state)

    # a buffer that two leaves share cannot be donated twice
    new, _ = case(name).update(state, make_batch(case(name).agent.spec), KEY)

    assert jax.tree.leaves(critic(state).params)[0].is_deleted()
    chex.assert_trees_all_equal_shapes_and_dtypes(host(new), kept)


SLOW_EAGER = [
    name if name in ("sac", "dqn") else pytest.param(name, marks=pytest.mark.slow)
    for name in AGENTS
]


@pytest.mark.parametrize("name", SLOW_EAGER)
def test_a_jitted_update_equals_an_unjitted_one(name):
    agent, update, _ = case(name)
    batch = make_batch(agent.spec)

    jitted, jitted_info = update(case(name).fresh(), batch, KEY)
    plain, plain_info = agent.update(case(name).fresh(), jax.tree.map(jnp.asarray, batch), KEY)

    # Adam's first step is learning_rate * sign(gradient), so rounding shows in gradients near 0
    chex.assert_trees_all_close(jitted_info, plain_info, rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_close(jitted, plain, rtol=1e-4, atol=1e-5)


@every_agent
def test_zero_weights_give_zero_critic_gradients(name):
    agent, update, _ = case(name)
    before = host(critic(case(name).fresh()).params)
    batch = make_batch(agent.spec, weight=np.zeros(B, np.float32))

    state, info = update(case(name).fresh(), batch, KEY)

    # Adam's step from a fresh state: learning_rate * 0 / (0 + epsilon)
    chex.assert_trees_all_equal(host(critic(state).params), before)
    assert np.all(info.td_error != 0)


@every_agent
def test_a_row_of_weight_zero_teaches_the_critic_nothing(name):
    agent, update, _ = case(name)
    weight = np.array([1, 0, 1, 1], np.float32)
    batch = make_batch(agent.spec, weight=weight)
    reward = batch.transition.reward + np.array([0, 100, 0, 0], np.float32)

    one, _ = update(case(name).fresh(), batch, KEY)
    two, _ = update(case(name).fresh(), make_batch(agent.spec, weight=weight, reward=reward), KEY)

    chex.assert_trees_all_close(critic(one).params, critic(two).params, rtol=1e-6)


@every_agent
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reward_that_is_not_finite_changes_no_critic_and_is_counted(name, value):
    agent, update, _ = case(name)
    before = host(critic(case(name).fresh()))
    batch = make_batch(agent.spec, reward=np.array([0, value, 0, 0], np.float32))

    state, _ = update(case(name).fresh(), batch, KEY)

    chex.assert_trees_all_equal(host(critic(state).params), before.params)
    chex.assert_trees_all_equal(host(critic(state).opt_state), before.opt_state)
    assert critic(state).skipped == 1 and state.step == 1
    assert sum(int(part.skipped) for part in trainables(state).values()) == 1
    chex.assert_tree_all_finite(state)


@every_agent
def test_learning_goes_on_after_a_batch_that_was_skipped(name):
    agent, update, _ = case(name)
    bad = make_batch(agent.spec, reward=np.full(B, np.nan, np.float32))
    before = host(critic(case(name).fresh()).params)

    state, _ = update(case(name).fresh(), bad, KEY)
    state, _ = update(state, make_batch(agent.spec), KEY)

    assert critic(state).skipped == 1 and state.step == 2
    changed = jax.tree.map(lambda a, b: np.any(a != b), critic(state).params, before)
    assert all(jax.tree.leaves(changed))


@every_agent
def test_observations_that_are_not_numbers_change_no_parameters(name):
    agent, update, _ = case(name)
    fresh = host(trainables(case(name).fresh()))
    batch = make_batch(agent.spec)
    batch.transition.observation["joints"][0, 0] = np.nan

    state, _ = update(case(name).fresh(), batch, KEY)
    state, _ = update(state, batch, KEY)

    for part, trained in trainables(state).items():
        chex.assert_trees_all_equal(host(trained.params), fresh[part].params)
        assert trained.skipped >= 1
    chex.assert_tree_all_finite(state)


@every_agent
def test_the_observation_after_the_end_of_an_episode_is_not_read(name):
    agent, update, _ = case(name)
    plain, broken = make_batch(agent.spec), make_batch(agent.spec)
    broken.transition.next_observation["joints"][3] = np.nan  # where discount is 0

    expected, expected_info = update(case(name).fresh(), plain, KEY)
    state, info = update(case(name).fresh(), broken, KEY)

    chex.assert_trees_all_equal(host(critic(state)), host(critic(expected)))
    np.testing.assert_array_equal(info.td_error, expected_info.td_error)


@every_agent
def test_actions_are_within_bounds_and_of_the_right_type(name):
    agent, params = case(name).agent, case(name).agent.actor_params(case(name).fresh())
    observation = observations(np.random.default_rng(1))

    action = case(name).actions(params, observation, KEY, [0, 0.5, 1, 10])

    stored = agent.spec.action
    assert action.shape == (B, *stored.shape) and action.dtype == stored.dtype
    low, high = (0, ACTIONS - 1) if agent.spec.discrete else (-1, 1)
    assert np.all((action >= low) & (action <= high))


@every_agent
def test_rows_that_do_not_explore_are_greedy_also_beside_others_that_do(name):
    params = case(name).agent.actor_params(case(name).fresh())
    observation = observations(np.random.default_rng(1))
    keys = jax.random.split(KEY, 16)
    act = functools.partial(case(name).actions, params, observation)

    greedy = act(keys[0], [0, 0, 0, 0])
    mixed = np.array([act(key, [0, 1, 0, 1]) for key in keys])

    np.testing.assert_array_equal(act(keys[1], [0, 0, 0, 0]), greedy)
    for row in (0, 2):
        np.testing.assert_array_equal(
            mixed[:, row], np.broadcast_to(greedy[row], (16, *greedy[row].shape))
        )
    for row in (1, 3):
        assert np.any(mixed[:, row] != greedy[row])


@every_agent
def test_the_schedule_of_exploration_is_a_number_of_at_least_zero(name):
    schedule = [case(name).agent.explore(env_steps) for env_steps in (0, 1, 10**4, 10**9)]

    assert all(isinstance(value, float) and value >= 0 for value in schedule)
