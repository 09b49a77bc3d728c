"""The messages that the parts of the library hand to each other, and the shape letters.

Shape letters, used in every docstring: B batch, E envs of one actor, T time, A action dimensions
or number of discrete actions, N critics of an ensemble, M critics in a target, K updates in one
compiled call, k rows of a chunk, ``*obs`` the shape of one observation.

Nothing here imports jax: the replay, the envs and their child processes live without it.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import jax

Params: TypeAlias = Any
"""A pytree of network parameters: nested dicts of ``jax.Array``."""
Carry: TypeAlias = Any
"""What acting remembers between two steps, a pytree with a leading axis; ``()`` if nothing."""
Key: TypeAlias = "jax.Array"
"""A typed JAX key, as made by ``jax.random.key``."""


class Transition(NamedTuple):
    """One n-step window of experience; leaves share their leading axes."""

    observation: Any  # [..., *obs]
    action: Any  # [..., A] float32 in [-1, 1], or [...] int32
    reward: Any  # [...] float32, sum of gamma^k r_k over the window
    discount: Any  # [...] float32, gamma^n, or 0 where the window ended in termination
    next_observation: Any  # [..., *obs] the state bootstrapped from; never a reset observation
    extras: Any = ()  # [..., *] the agent's carry before the step; () for most agents


class Batch(NamedTuple):
    """What one update learns from."""

    transition: Transition  # [B, ...]
    weight: Any  # [B] float32 importance weights, ones for uniform replay


class Sample(NamedTuple):
    """Memory gathered from the replay, which never touches it again."""

    rows: dict[str, np.ndarray]  # dtype -> [K, B, width], unpacked inside the compiled step
    weight: np.ndarray  # [K, B] float32
    ids: np.ndarray  # [K, B] int64 insertion numbers
    total: int  # transitions ever inserted when it was drawn


class Windows(NamedTuple):
    """Finished n-step windows of one actor; those of one lane in order of time."""

    transitions: Transition  # [k, ...] numpy
    lane: np.ndarray  # [k] int32, which of the actor's envs
    end: np.ndarray  # [k] uint8, one of GOES_ON, TERMINATED, TRUNCATED, CUT


GOES_ON, TERMINATED, TRUNCATED, CUT = range(4)


class Episode(NamedTuple):
    """A finished training episode."""

    episode_return: float  # undiscounted
    length: int
    success: float  # info["is_success"]; NaN where the env does not say


class Chunk(NamedTuple):
    """The one message from acting to learning."""

    windows: Windows
    actor: int
    incarnation: int  # of the actor's envs
    env_steps: int  # steps taken meanwhile; not k: windows finish late, and in bursts
    episodes: tuple[Episode, ...]  # those that ended meanwhile
    version: int  # the oldest policy that acted in these steps; -1: random actions only
    version_env_steps: int  # when that version was offered


class UpdateInfo(NamedTuple):
    """What an update has to say."""

    metrics: dict[str, "jax.Array"]  # scalars on the device; NaN means "no value this time"
    td_error: "jax.Array"  # [B], size of the error, the mean over critics: what priorities take


class ArraySpec(NamedTuple):
    """Shape and dtype of an array; hashable, and JSON as it stands."""

    shape: tuple[int, ...]
    dtype: str


class EnvSpec(NamedTuple):
    """What an agent knows of its env; hashable, because it is a part of every agent."""

    observation: Any  # an ArraySpec, or a tuple of (name, spec) pairs sorted by name, nested
    action_size: int  # dimensions of a box, or number of discrete actions
    discrete: bool

    def zeros(self, batch: int) -> Any:
        """Zero observations ``[batch, *obs]`` as numpy arrays."""
        return map_spec(lambda spec: np.zeros((batch, *spec.shape), spec.dtype), self.observation)

    @property
    def action(self) -> ArraySpec:
        """What one stored action looks like."""
        return (
            ArraySpec((), "int32") if self.discrete else ArraySpec((self.action_size,), "float32")
        )


def describe_row(tree: Any) -> Any:
    """The ``ArraySpec`` of each leaf [B, ...] of a tree, without its leading axis."""

    def describe(leaf: Any) -> ArraySpec:
        array = np.asarray(leaf)
        return ArraySpec(array.shape[1:], array.dtype.name)

    return map_leaves(describe, tree)


def map_spec(fn: Callable[[ArraySpec], Any], spec: Any) -> Any:
    """Applies ``fn`` to each ``ArraySpec``; pairs of names become a dict."""
    if isinstance(spec, ArraySpec):
        return fn(spec)
    return {name: map_spec(fn, part) for name, part in spec}


def map_leaves(fn: Callable[..., Any], *trees: Any) -> Any:
    """``jax.tree.map`` over nested dicts and tuples, for the floors that live without jax."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {name: map_leaves(fn, *(tree[name] for tree in trees)) for name in first}
    if isinstance(first, tuple) and not isinstance(first, ArraySpec | Column):
        parts = [map_leaves(fn, *group) for group in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return fn(*trees)


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested dicts and tuples, in the order of ``map_leaves``."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


class Column(NamedTuple):
    """Where one leaf of a ``Transition`` lies in the packed row of its dtype."""

    dtype: str
    columns: slice
    shape: tuple[int, ...]


class Layout:
    """Which columns of the packed row of its dtype each leaf of a ``Transition`` takes.

    One contiguous row per transition and dtype makes a sample one gather, and its way to the
    device one transfer, per dtype instead of per field. Nested dicts, tuples and slices only, so
    the same code runs on numpy and inside a jitted function.
    """

    def __init__(self, spec: EnvSpec, extras: Any = ()):
        self.widths: dict[str, int] = {}
        observation = map_spec(lambda leaf: leaf, spec.observation)
        scalar = ArraySpec((), "float32")
        self._columns = map_leaves(
            self._assign,
            Transition(observation, spec.action, scalar, scalar, observation, extras),
        )

    def _assign(self, leaf: ArraySpec) -> Column:
        start = self.widths.get(leaf.dtype, 0)
        stop = self.widths[leaf.dtype] = start + math.prod(leaf.shape)
        return Column(leaf.dtype, slice(start, stop), tuple(leaf.shape))

    def pack(self, transitions: Transition) -> dict[str, np.ndarray]:
        """Rows ``dtype -> [T, width]`` of transitions ``[T, ...]``.

        Raises:
          ValueError: a leaf has another shape or kind of dtype than the spec says.
        """
        count = len(transitions.reward)
        rows = {dtype: np.empty((count, width), dtype) for dtype, width in self.widths.items()}

        def write(column: Column, leaf: Any) -> None:
            array = declared(column, leaf, count)
            rows[column.dtype][:, column.columns] = array.reshape(count, math.prod(column.shape))

        map_leaves(write, self._columns, transitions)
        return rows

    def check(self, transitions: Transition) -> None:
        """Raises the ValueError that ``pack`` would."""
        count = len(transitions.reward)
        map_leaves(lambda column, leaf: declared(column, leaf, count), self._columns, transitions)

    def columns(self) -> Transition:
        """Where each leaf lies, as a ``Transition`` of ``Column``."""
        return self._columns

    def unpack(self, rows: Mapping[str, Any]) -> Transition:
        """Transitions ``[..., *leaf]`` of rows ``dtype -> [..., width]``, numpy or jax."""

        def read(column: Column) -> Any:
            packed = rows[column.dtype]
            return packed[..., column.columns].reshape(*packed.shape[:-1], *column.shape)

        return map_leaves(read, self._columns)


def declared(column: Column, leaf: Any, count: int) -> np.ndarray:
    """A leaf as an array, if it is one that belongs into ``count`` rows of this column."""
    array, expected = np.asarray(leaf), (count, *column.shape)
    if array.shape != expected or not np.can_cast(array.dtype, column.dtype, "same_kind"):
        raise ValueError(
            f"a transition holds {array.dtype}{list(array.shape)} where the env's spaces"
            f" say {column.dtype}{list(expected)}: make the env return what it declares"
        )
    return array
