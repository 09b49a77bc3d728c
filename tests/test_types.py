"""The packed rows of transitions, and the small tree functions that live without jax."""

import jax
import numpy as np
import pytest

from jaxrl_async.types import (
    ArraySpec,
    EnvSpec,
    Layout,
    Transition,
    leaves,
    map_leaves,
    map_spec,
)

FLAT = EnvSpec(ArraySpec((3,), "float32"), action_size=2, discrete=False)
DISCRETE = EnvSpec(ArraySpec((3,), "float32"), action_size=4, discrete=True)
PIXELS = EnvSpec(ArraySpec((4, 5, 2), "uint8"), action_size=4, discrete=True)
NESTED = EnvSpec(
    (
        ("arm", (("angles", ArraySpec((2, 2), "float32")), ("grip", ArraySpec((), "float32")))),
        ("camera", ArraySpec((3, 3), "uint8")),
        ("count", ArraySpec((1,), "int32")),
    ),
    action_size=2,
    discrete=False,
)
RECURRENT = (ArraySpec((6,), "float32"), {"age": ArraySpec((), "int32")})

LAYOUTS = {
    "flat": (FLAT, ()),
    "discrete": (DISCRETE, ()),
    "pixels": (PIXELS, ()),
    "nested": (NESTED, ()),
    "recurrent": (FLAT, RECURRENT),
}


def random_transitions(spec, extras, count, seed=0):
    """Arbitrary bits of every leaf's dtype: NaNs and infinities among the floats."""
    rng = np.random.default_rng(seed)

    def leaf(part):
        shape = (count, *part.shape)
        size = int(np.prod(shape)) * np.dtype(part.dtype).itemsize
        return np.frombuffer(rng.bytes(size), part.dtype).reshape(shape)

    observation, scalar = map_spec(leaf, spec.observation), ArraySpec((), "float32")
    next_observation = map_spec(leaf, spec.observation)
    kept = map_leaves(leaf, extras)
    return Transition(
        observation, leaf(spec.action), leaf(scalar), leaf(scalar), next_observation, kept
    )


def assert_same_bits(actual, expected):
    for ours, theirs in zip(leaves(actual), leaves(expected), strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()


# ---- Layout --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAYOUTS)
def test_unpacking_a_packed_row_gives_every_bit_back(name):
    spec, extras = LAYOUTS[name]
    transitions = random_transitions(spec, extras, count=7)
    layout = Layout(spec, extras)

    back = layout.unpack(layout.pack(transitions))

    assert_same_bits(back, transitions)
    assert type(back) is Transition


def test_there_is_one_row_per_dtype_and_it_is_as_wide_as_its_leaves():
    # flat: 3 + 2 + 1 + 1 + 3 floats; discrete: 3 + 1 + 1 + 3 floats, one int32 action;
    # pixels: 2 * 40 bytes, 2 floats, one int32; nested: 2 * (4 + 1) + 2 + 1 + 1 floats, 2 * 9
    # bytes, 2 * 1 int32; recurrent: 10 + 6 floats, one int32.
    widths = {
        "flat": {"float32": 10},
        "discrete": {"float32": 8, "int32": 1},
        "pixels": {"uint8": 80, "float32": 2, "int32": 1},
        "nested": {"float32": 14, "uint8": 18, "int32": 2},
        "recurrent": {"float32": 16, "int32": 1},
    }

    for name, (spec, extras) in LAYOUTS.items():
        layout = Layout(spec, extras)
        rows = layout.pack(random_transitions(spec, extras, count=5))

        assert layout.widths == widths[name]
        assert {dtype: array.shape for dtype, array in rows.items()} == {
            dtype: (5, width) for dtype, width in widths[name].items()
        }
        assert all(array.dtype == dtype for dtype, array in rows.items())
        assert all(array.flags.c_contiguous for array in rows.values())


def test_the_columns_of_a_row_lie_in_the_order_of_the_fields():
    transition = Transition(
        observation=np.array([[1, 2, 3]], np.float32),
        action=np.array([[4, 5]], np.float32),
        reward=np.array([6], np.float32),
        discount=np.array([7], np.float32),
        next_observation=np.array([[8, 9, 10]], np.float32),
    )

    rows = Layout(FLAT).pack(transition)

    np.testing.assert_array_equal(rows["float32"], [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])


@pytest.mark.parametrize("name", LAYOUTS)
def test_unpacking_works_inside_a_compiled_function(name):
    spec, extras = LAYOUTS[name]
    transitions = random_transitions(spec, extras, count=6)
    layout = Layout(spec, extras)
    rows = {  # [K, B, width] with K = 2, B = 3
        dtype: array.reshape(2, 3, -1) for dtype, array in layout.pack(transitions).items()
    }

    back = jax.jit(layout.unpack)(rows)

    assert all(isinstance(leaf, jax.Array) for leaf in leaves(back))
    assert_same_bits(
        back, map_leaves(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]), transitions)
    )


def test_no_transitions_pack_into_no_rows():
    layout = Layout(PIXELS)

    rows = layout.pack(random_transitions(PIXELS, (), count=0))

    assert {dtype: array.shape for dtype, array in rows.items()} == {
        "uint8": (0, 80),
        "float32": (0, 2),
        "int32": (0, 1),
    }


def test_float64_from_an_env_is_stored_as_the_float32_that_its_space_says():
    transitions = random_transitions(FLAT, (), count=2)
    double = transitions._replace(observation=np.full((2, 3), 0.1, np.float64))
    layout = Layout(FLAT)

    back = layout.unpack(layout.pack(double))

    assert back.observation.dtype == np.float32
    np.testing.assert_array_equal(back.observation, np.full((2, 3), 0.1, np.float32))


@pytest.mark.parametrize(
    ("name", "field", "value", "found", "declared"),
    [
        ("flat", "observation", np.zeros((2, 4), "f4"), "float32[2, 4]", "float32[2, 3]"),
        ("flat", "observation", np.zeros((2, 3, 1), "f4"), "float32[2, 3, 1]", "float32[2, 3]"),
        ("flat", "next_observation", np.zeros(3, "f4"), "float32[3]", "float32[2, 3]"),
        ("flat", "action", np.zeros(2, "f4"), "float32[2]", "float32[2, 2]"),
        ("flat", "reward", np.zeros((2, 1), "f4"), "float32[2, 1]", "float32[2]"),
        ("flat", "discount", np.zeros(3, "f4"), "float32[3]", "float32[2]"),
        ("flat", "observation", np.zeros((2, 3), "c8"), "complex64[2, 3]", "float32[2, 3]"),
        ("discrete", "action", np.zeros(2, "f4"), "float32[2]", "int32[2]"),
        ("pixels", "observation", np.zeros((2, 4, 5, 2), "f4"), "float32[2, 4, 5, 2]", "uint8"),
        ("pixels", "observation", np.zeros((2, 4, 5, 2), "i8"), "int64[2, 4, 5, 2]", "uint8"),
        ("flat", "observation", np.array([["a"] * 3] * 2), "<U1[2, 3]", "float32[2, 3]"),
    ],
)
def test_another_shape_or_kind_than_declared_is_refused_by_name(
    name, field, value, found, declared
):
    spec, extras = LAYOUTS[name]
    transitions = random_transitions(spec, extras, count=2)._replace(**{field: value})

    with pytest.raises(ValueError, match="make the env return what it declares") as refusal:
        Layout(spec, extras).pack(transitions)

    assert f"holds {found} where" in str(refusal.value)
    assert f"say {declared}" in str(refusal.value)


def test_a_leaf_deep_in_a_dict_is_checked_like_any_other():
    transitions = random_transitions(NESTED, (), count=2)
    transitions.observation["arm"]["angles"] = np.zeros((2, 2, 3), np.float32)

    with pytest.raises(ValueError, match=r"float32\[2, 2, 3\] where .* float32\[2, 2, 2\]"):
        Layout(NESTED).pack(transitions)


# ---- specs and trees -----------------------------------------------------------------------


def test_a_spec_is_hashable_and_makes_zero_observations():
    zeros = NESTED.zeros(batch=2)

    assert hash(NESTED) == hash(EnvSpec(NESTED.observation, 2, False))
    assert {name: part.shape for name, part in zeros["arm"].items()} == {
        "angles": (2, 2, 2),
        "grip": (2,),
    }
    assert (zeros["camera"].dtype, zeros["count"].dtype) == (np.uint8, np.int32)
    assert not any(leaf.any() for leaf in leaves(zeros))


def test_a_stored_action_is_a_row_of_floats_or_one_integer():
    assert FLAT.action == ArraySpec((2,), "float32")
    assert DISCRETE.action == ArraySpec((), "int32")


def test_map_leaves_keeps_dicts_tuples_and_named_tuples():
    tree = {"a": (1, ()), "b": Transition(2, {"c": 3}, 4, 5, 6)}

    mapped = map_leaves(lambda leaf: leaf * 10, tree)

    assert mapped == {"a": (10, ()), "b": Transition(20, {"c": 30}, 40, 50, 60)}
    assert type(mapped["b"]) is Transition


def test_map_leaves_walks_several_trees_together_by_name():
    first, second = {"a": 1, "b": (2, 3)}, {"b": (20, 30), "a": 10}

    assert map_leaves(lambda x, y: x + y, first, second) == {"a": 11, "b": (22, 33)}


def test_map_leaves_refuses_tuples_of_another_length():
    with pytest.raises(ValueError, match="zip"):
        map_leaves(lambda x, y: x + y, (1, 2), (1, 2, 3))


def test_specs_are_leaves_although_they_are_tuples():
    spec = ArraySpec((2,), "float32")

    assert leaves((spec, {"a": spec})) == [spec, spec]


def test_leaves_come_in_the_order_of_map_leaves():
    tree = ({"b": 1, "a": (2, 3)}, (), Transition(4, 5, 6, 7, {"z": 8}))

    assert leaves(tree) == [1, 2, 3, 4, 5, 6, 7, 8]
