"""Spaces: what agents see of them, how actions are scaled, and which are refused."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxrl_async.checks import ConfigError
from jaxrl_async.envs.spaces import ActionBounds, as_declared, describe
from jaxrl_async.envs.vector import SerialVectorEnv
from jaxrl_async.types import ArraySpec, EnvSpec, map_leaves

POINT = spaces.Box(-1.0, 1.0, (2,), np.float32)
COINS = spaces.Discrete(2)


def bounds_of(action):
    return describe(POINT, action)[1]


def box(low, high, dtype=np.float32):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


class Fixed(gym.Env):
    """Has the spaces it is given; its observations are their samples."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


# ---- actions --------------------------------------------------------------------------------


def test_a_box_is_scaled_to_its_bounds_and_back():
    # stable-baselines #573: low + (a + 1) / 2 (high - low)
    # 0 + 0.5 / 2 * 10 = 2.5; -2 + 1.5 / 2 * 4 = 1
    bounds = bounds_of(box([0, -2], [10, 2]))
    action, env_action = [[-0.5, 0.5]], [[2.5, 1.0]]

    taken = bounds.to_env(np.array(action, np.float32))
    stored = bounds.from_env(np.array(env_action, np.float32))

    np.testing.assert_array_equal(taken, env_action)
    np.testing.assert_array_equal(stored, action)
    assert (taken.dtype, stored.dtype) == (np.float32, np.float32)


def test_the_ends_of_a_box_are_reached_exactly():
    # 0.1 and 0.7 are no binary fractions: rounding must not miss either end
    space = box([0.1], [0.7])

    taken = bounds_of(space).to_env(np.array([[-1.0], [1.0]], np.float32))

    np.testing.assert_array_equal(taken[:, 0], [space.low[0], space.high[0]])


@st.composite
def boxes_and_actions(draw):
    finite = st.floats(-(2.0**100), 2.0**100, width=32)
    low, high = sorted(draw(st.lists(finite, min_size=2, max_size=2, unique=True)))
    return box([low], [high]), draw(st.floats(-1.0, 1.0, width=32))


@settings(
    derandomize=True,
    deadline=None,
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],  # the machine's speed is not the matter
)
@given(boxes_and_actions())
def test_no_rounding_leaves_the_bounds(case):
    space, action = case
    bounds = bounds_of(space)

    taken = bounds.to_env(np.array([[action]], np.float32))
    stored = bounds.from_env(taken)

    assert space.contains(taken[0])
    assert -1.0 <= stored[0, 0] <= 1.0


def test_an_action_a_rounding_beyond_one_is_clipped():
    space = box([-3.0], [5.0])
    beyond = np.nextafter(np.float32(1.0), np.float32(2.0))

    taken = bounds_of(space).to_env(np.array([[beyond], [-beyond]], np.float32))

    np.testing.assert_array_equal(taken[:, 0], [5.0, -3.0])


@pytest.mark.parametrize(("shape", "size"), [((), 1), ((3,), 3), ((2, 3), 6)])
def test_actions_take_the_shape_of_the_space(shape, size):
    space = spaces.Box(-2.0, 2.0, shape, np.float64)

    spec, bounds = describe(POINT, space)
    taken = bounds.to_env(np.full((4, size), 0.5, np.float32))

    # -2 + 1.5 / 2 * 4 = 1
    assert spec.action == ArraySpec((size,), "float32")
    assert (taken.shape, taken.dtype) == ((4, *shape), np.float64)
    np.testing.assert_array_equal(taken, 1.0)
    np.testing.assert_array_equal(bounds.from_env(taken), np.full((4, size), 0.5))


def test_discrete_actions_are_counted_from_zero():
    space = spaces.Discrete(3, start=3)

    spec, bounds = describe(POINT, space)
    taken = bounds.to_env(np.array([0, 1, 2], np.int32))

    assert spec == EnvSpec(ArraySpec((2,), "float32"), 3, True)
    assert spec.action == ArraySpec((), "int32")
    np.testing.assert_array_equal(taken, [3, 4, 5])
    assert all(space.contains(action) for action in taken)
    np.testing.assert_array_equal(bounds.from_env(taken), [0, 1, 2])
    assert bounds.from_env(taken).dtype == np.int32


def test_bounds_are_numbers_that_compare_and_hash():
    expected = ActionBounds((0.0, -2.0), (10.0, 2.0), (2,), "float32", 0)

    assert bounds_of(box([0, -2], [10, 2])) == expected
    assert len({expected, bounds_of(box([0, -2], [10, 2]))}) == 1
    assert [type(number) for number in expected.low + expected.high] == [float] * 4


# ---- observations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "seen"),
    [
        (np.float64, "float32"),
        (np.float16, "float32"),
        (np.float32, "float32"),
        (np.uint8, "uint8"),
        (np.int32, "int32"),
        (np.int8, "int8"),
        (bool, "bool"),
    ],
)
def test_floats_become_float32_and_integers_stay(declared, seen):
    space = spaces.Box(np.zeros(3, declared), np.ones(3, declared), dtype=declared)

    spec, _ = describe(space, COINS)
    observation = as_declared(np.ones((5, 3), declared))

    assert spec.observation == ArraySpec((3,), seen)
    assert (observation.dtype, observation.shape) == (seen, (5, 3))
    np.testing.assert_array_equal(observation, 1)


def test_float64_is_rounded_once_to_the_nearest_float32():
    # 16777217 = 2^24 + 1 lies between two float32; the even neighbour is 2^24
    observation = as_declared(np.array([[0.1, 16777217.0]]))

    np.testing.assert_array_equal(observation, np.array([[0.1, 16777216.0]], np.float32))


def test_images_keep_their_shape_and_every_value():
    space = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    image = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3) * 5

    spec, _ = describe(space, COINS)

    assert spec.observation == ArraySpec((4, 4, 3), "uint8")
    assert spec.zeros(2).shape == (2, 4, 4, 3)
    np.testing.assert_array_equal(as_declared(image), image)


# ---- refusals -------------------------------------------------------------------------------

NAMED = spaces.Dict({"image": spaces.Box(0, 255, (4,), np.uint8), "speed": POINT})
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)
REFUSED_OBSERVATIONS = {
    "tuple": (spaces.Tuple([POINT, POINT]), r"Tuple is not supported; .*FlattenObservation"),
    "discrete": (spaces.Discrete(4), r"Discrete is not supported; .*FlattenObservation"),
    "int64": (spaces.Box(0, 9, (2,), np.int64), r"int64 does not fit .*DtypeObservation"),
}
REFUSED_ACTIONS = {
    "multidiscrete": (
        spaces.MultiDiscrete([2, 3]),
        r"MultiDiscrete of int64 is not supported; use Discrete or a floating Box.*TransformAction",
    ),
    "integers": (
        spaces.Box(0, 9, (2,), np.int32),
        r"Box of int32 is not supported; use Discrete or a floating Box.*TransformAction",
    ),
    "dict": (spaces.Dict({"arm": POINT}), r"Dict .*is not supported; .*TransformAction"),
    "infinite": (UNBOUNDED, r"bounds, which must be finite with low < high; .*TransformAction"),
    "half infinite": (box([0.0], [np.inf]), r"must be finite with low < high"),
    "empty": (box([0.0, 1.0], [1.0, 1.0]), r"must be finite with low < high"),
}


def test_a_dict_of_boxes_is_one_tree_from_the_env_on():
    space = spaces.Dict({"b": spaces.Box(0, 255, (2, 2), np.uint8), "a": POINT})
    env = SerialVectorEnv(lambda: Fixed(space, COINS), 2)

    spec, _ = describe(env.single_observation_space, env.single_action_space)
    observation, _ = env.reset(seed=[0, 1])

    point = ArraySpec(POINT.shape, "float32")
    assert spec.observation == (("a", point), ("b", ArraySpec((2, 2), "uint8")))
    assert {name: leaf.shape for name, leaf in observation.items()} == {
        "a": (2, *POINT.shape),
        "b": (2, 2, 2),
    }
    assert map_leaves(np.shape, spec.zeros(2)) == map_leaves(np.shape, observation)


@pytest.mark.parametrize("name", REFUSED_OBSERVATIONS)
def test_an_observation_space_is_refused_by_name_and_with_a_remedy(name):
    space, message = REFUSED_OBSERVATIONS[name]
    env = SerialVectorEnv(lambda: Fixed(space, COINS), 2)

    with pytest.raises(ConfigError, match=rf"(?s)env's observation space = .*{message}"):
        describe(env.single_observation_space, env.single_action_space)


@pytest.mark.parametrize("name", REFUSED_ACTIONS)
def test_an_action_space_is_refused_by_name_and_with_a_remedy(name):
    space, message = REFUSED_ACTIONS[name]
    env = SerialVectorEnv(lambda: Fixed(POINT, space), 2)

    with pytest.raises(ConfigError, match=rf"(?s)env's action space = .*{message}"):
        describe(env.single_observation_space, env.single_action_space)


def rounded(action):
    return np.round(action).astype(np.int32)


@pytest.mark.parametrize(
    "remedied",
    [
        lambda: wrappers.FlattenObservation(Fixed(NAMED, COINS)),
        lambda: wrappers.DtypeObservation(
            wrappers.FlattenObservation(Fixed(spaces.Discrete(4), COINS)), np.float32
        ),
        lambda: wrappers.DtypeObservation(
            Fixed(spaces.Box(0, 9, (2,), np.int64), COINS), np.float32
        ),
        lambda: wrappers.DtypeObservation(Fixed(spaces.Box(0, 9, (2,), np.int64), COINS), np.int32),
        lambda: wrappers.TransformAction(
            Fixed(POINT, spaces.Box(0, 9, (2,), np.int32)), rounded, box([0, 0], [9, 9])
        ),
        lambda: wrappers.TransformAction(
            Fixed(POINT, UNBOUNDED), lambda action: action, box([-1, -1], [1, 1])
        ),
    ],
    ids=["flattened", "one-hot", "float32", "int32", "rounded", "bounded"],
)
def test_the_remedies_work(remedied):
    env = SerialVectorEnv(remedied, 2)

    spec, bounds = describe(env.single_observation_space, env.single_action_space)
    zeros = np.zeros((2, *spec.action.shape), spec.action.dtype)
    first, _ = env.reset(seed=[0, 1])
    second, *_ = env.step(bounds.to_env(zeros))

    for observation in (as_declared(first), as_declared(second)):
        assert observation.shape == (2, *spec.observation.shape)
        assert observation.dtype == spec.observation.dtype
