"""Checkpoints: all that a run needs to go on, in directories that are complete or not there.

    checkpoints/<env steps>-<updates>/agent/     the agent's state and the published parameters
    checkpoints/<env steps>-<updates>/run.npz    everything else, arrays and JSON
    checkpoints/replay/<first>-<last>.npz        rows of the replay by insertion number

The replay is a log of segments that are written once: a checkpoint adds the rows since the last one
and names the range it needs, so neither the ring nor what was saved before is written again. A
checkpoint is written under another name and renamed when it is complete.
"""

import json
import os
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.replay import Replay

SEGMENT_BYTES = 64 * 2**20
"""Most rows are copied at once, with actors waiting meanwhile."""


@final
class Checkpointer:
    """The checkpoints of one run directory. Main thread only."""

    def __init__(self, directory: pathlib.Path, *, keep: int):
        self._directory = directory.absolute() / "checkpoints"
        self._segments = self._directory / "replay"
        self._keep = keep

    # ---- saving -----------------------------------------------------------------------------

    def save(
        self, env_steps: int, updates: int, arrays: Any, run: dict[str, Any], replay: Replay
    ) -> None:
        """Writes a checkpoint, then removes what is older than the newest ``keep``.

        Args:
          env_steps: of the run.
          updates: of the run.
          arrays: a pytree of jax arrays.
          run: nested dicts and lists of numpy arrays and JSON values; gets the entry ``replay``.
          replay: whose rows are added to the log, up to number ``run["rows"]``.
        """
        self._segments.mkdir(parents=True, exist_ok=True)
        first = self._save_rows(replay, run["rows"])
        path = self._directory / f"{env_steps:012d}-{updates:012d}"
        partial = path.with_name(path.name + ".partial")
        for stale in (partial, path):
            if stale.exists():
                shutil.rmtree(stale)
        partial.mkdir()
        with ocp.StandardCheckpointer() as writer:
            writer.save(partial / "agent", without_keys(arrays))
        write_npz(partial / "run.npz", run | {"first_row": first})
        os.rename(partial, path)
        self._prune()

    def _save_rows(self, replay: Replay, stop: int) -> int:
        """Adds the rows up to ``stop`` that the log lacks; the first that it now has, unbroken."""
        saved = self._ranges()
        start = saved[-1][1] if saved else 0
        contiguous_from = saved[0][0] if saved else None
        while start < stop:
            first, rows = replay.rows(start, stop, SEGMENT_BYTES)
            if first > start or contiguous_from is None:
                contiguous_from = first  # the ring had lapped what lay between
            start = first + len(next(iter(rows.values())))
            write_npz(self._segments / f"{first:012d}-{start:012d}.npz", dict(rows))
        return contiguous_from if contiguous_from is not None else stop

    def _ranges(self) -> list[tuple[int, int]]:
        """First and one past the last row of each segment, in order."""
        names = [re.fullmatch(r"(\d{12})-(\d{12})\.npz", p.name) for p in listing(self._segments)]
        return sorted((int(m[1]), int(m[2])) for m in names if m)

    def _prune(self) -> None:
        found = self._complete()
        for path in found[: -self._keep]:
            shutil.rmtree(path)
        oldest = read_npz(found[-self._keep :][0] / "run.npz")
        needed = max(oldest["first_row"], oldest["rows"] - oldest["capacity"])
        for first, stop in self._ranges():
            if stop <= needed:
                (self._segments / f"{first:012d}-{stop:012d}.npz").unlink()

    def _complete(self) -> list[pathlib.Path]:
        return sorted(p for p in listing(self._directory) if re.fullmatch(r"\d{12}-\d{12}", p.name))

    # ---- restoring --------------------------------------------------------------------------

    def latest(self) -> pathlib.Path | None:
        """The newest complete checkpoint."""
        return self._complete()[-1] if self._complete() else None

    def restore_run(self, path: pathlib.Path) -> dict[str, Any]:
        """What was given to ``save`` as ``run``."""
        return read_npz(path / "run.npz")

    def restore_arrays(self, path: pathlib.Path, like: Any) -> Any:
        """What was given to ``save`` as ``arrays``, placed like ``like``.

        Raises:
          ConfigError: an array has another shape or dtype than in ``like``, or is missing; orbax
            would cast and pad in silence.
        """
        wanted = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            without_keys(like),
        )
        with ocp.StandardCheckpointer() as reader:
            saved = reader.metadata(path / "agent").item_metadata.tree
            refuse_other_arrays(path, wanted, saved)
            found = reader.restore(path / "agent", wanted)
        return with_keys(found, like)

    def restore_rows(self, run: Mapping[str, Any], replay: Replay) -> None:
        """Fills the replay with the rows of a checkpoint, as far as it holds them."""
        start = max(run["first_row"], run["rows"] - replay.capacity)
        replay.restart(start)
        for first, stop in self._ranges():
            low, high = max(first, start), min(stop, run["rows"])
            if low < high:
                rows = read_npz(self._segments / f"{first:012d}-{stop:012d}.npz")
                replay.append({k: v[low - first : high - first] for k, v in rows.items()})
        for first, stop in self._ranges():  # rows that only a lost future had
            if stop > run["rows"]:
                path = self._segments / f"{first:012d}-{stop:012d}.npz"
                rows = read_npz(path) if first < run["rows"] else None
                path.unlink()
                if rows is not None:
                    kept = {k: v[: run["rows"] - first] for k, v in rows.items()}
                    write_npz(self._segments / f"{first:012d}-{run['rows']:012d}.npz", kept)


def listing(directory: pathlib.Path) -> list[pathlib.Path]:
    """What lies in a directory that may not exist."""
    return list(directory.iterdir()) if directory.is_dir() else []


# ---- keys: orbax knows only arrays ---------------------------------------------------------


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed JAX key."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_keys(tree: Any) -> Any:
    """Typed keys as their raw data."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)


def with_keys(tree: Any, like: Any) -> Any:
    """Raw data as typed keys where ``like`` has them."""

    def wrap(leaf: jax.Array, wanted: Any) -> jax.Array:
        if not is_key(wanted):
            return leaf
        return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(wanted))

    return jax.tree.map(wrap, tree, like)


def is_array_like(leaf: Any) -> bool:
    """Whether a leaf has a shape and a dtype, as arrays and their descriptions do."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def key_name(key: Any) -> str:
    """One step of a pytree path as a word: a dict's key, a field's name or an index."""
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def refuse_other_arrays(path: pathlib.Path, wanted: Any, saved: Any) -> None:
    """Raises unless the saved arrays are those of the agent, by place, shape and dtype."""

    def described(tree: Any) -> dict[str, tuple[Any, str]]:
        found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_array_like)
        return {
            ".".join(key_name(key) for key in keys): (tuple(leaf.shape), np.dtype(leaf.dtype).name)
            for keys, leaf in found
            if is_array_like(leaf)
        }

    expected, found = described(wanted), described(saved)
    wrong = sorted(name for name in expected | found if expected.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise ConfigError(
            f"{path}: {name} is {found.get(name)}, the agent of this config needs"
            f" {expected.get(name)} ({len(wrong)} arrays differ); resume with the config it was"
            " saved with"
        )


# ---- arrays and JSON in one file -----------------------------------------------------------


def write_npz(path: pathlib.Path, tree: Any) -> None:
    """Nested dicts and lists of numpy arrays and JSON values as one file, without pickle."""
    arrays: dict[str, np.ndarray] = {}

    def strip(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays[f"a{len(arrays)}"] = value
            return {"$array": f"a{len(arrays) - 1}"}
        if isinstance(value, Mapping):
            return {key: strip(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [strip(part) for part in value]
        return value

    text = json.dumps(strip(tree), default=lambda scalar: scalar.item())
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        np.savez(file, allow_pickle=False, json=np.frombuffer(text.encode(), np.uint8), **arrays)
    os.replace(partial, path)


def read_npz(path: pathlib.Path) -> dict[str, Any]:
    """The inverse of ``write_npz``; tuples come back as lists."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}

    def fill(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {"$array"}:
            return arrays[value["$array"]]
        if isinstance(value, dict):
            return {key: fill(part) for key, part in value.items()}
        return [fill(part) for part in value] if isinstance(value, list) else value

    return fill(json.loads(arrays.pop("json").tobytes()))
