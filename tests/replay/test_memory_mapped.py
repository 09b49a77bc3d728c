"""Rows in files: the same as in memory, bit for bit, and more of them than memory holds."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from jaxrl_async.checks import ConfigError
from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.ring import Ring
from jaxrl_async.replay.transitions import TransitionStore
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.types import ArraySpec, EnvSpec, Layout, Transition

WIDTHS = {"float32": 3, "uint8": 5, "int32": 1}
LAYOUT = Layout(EnvSpec(ArraySpec((4,), "uint8"), action_size=2, discrete=False))


def random_rows(rng, count):
    """Any bits at all, NaNs among them."""
    return {
        dtype: rng.integers(0, 256, (count, width * np.dtype(dtype).itemsize), np.uint8).view(dtype)
        for dtype, width in WIDTHS.items()
    }


def bits(rows):
    return {dtype: array.tobytes() for dtype, array in rows.items()}


@pytest.mark.parametrize("capacity", [1, 7, 50])
@pytest.mark.parametrize("seed", range(5))
def test_a_ring_in_files_holds_what_a_ring_in_memory_does(tmp_path, capacity, seed):
    rng = np.random.default_rng(seed)
    mapped, plain = Ring(capacity, WIDTHS, str(tmp_path / "rows")), Ring(capacity, WIDTHS)

    for _ in range(60):
        if rng.random() < 0.05:
            first = int(rng.choice([0, 3, 2**31 + 5]))
            mapped.restart(first)
            plain.restart(first)
        rows = random_rows(rng, int(rng.integers(0, capacity + 1)))
        mapped.add(rows)
        plain.add(rows)

        assert (len(mapped), mapped.oldest, mapped.total) == (len(plain), plain.oldest, plain.total)
        kept = np.arange(plain.oldest, plain.total)
        assert bits(mapped.take(kept)) == bits(plain.take(kept))
        if len(plain):
            some = rng.choice(kept, (2, 3))
            assert bits(mapped.take(some)) == bits(plain.take(some))
            one = mapped.take_one("uint8", some)
            assert one.tobytes() == plain.take_one("uint8", some).tobytes()
        mapped.check_valid()
    assert mapped.row_bytes == plain.row_bytes == 3 * 4 + 5 + 4


def test_the_directory_is_made_and_no_file_in_it_has_a_name(tmp_path):
    path = tmp_path / "not" / "yet"
    ring = Ring(10, WIDTHS, str(path))
    ring.add(random_rows(np.random.default_rng(0), 10))

    assert path.is_dir() and not list(path.iterdir())
    assert all(isinstance(kept, np.memmap) for kept in ring._rows.values())


def test_rings_in_one_directory_know_nothing_of_each_other(tmp_path):
    rng = np.random.default_rng(0)
    one, other = Ring(10, WIDTHS, str(tmp_path)), Ring(4, WIDTHS, str(tmp_path))
    first, second = random_rows(rng, 10), random_rows(rng, 3)

    one.add(first)
    assert len(other) == 0 and not any(kept.any() for kept in other._rows.values())
    other.add(second)

    assert bits(one.take(np.arange(10))) == bits(first)
    assert bits(other.take(np.arange(3))) == bits(second)


def test_a_disk_without_room_is_found_at_the_start(tmp_path):
    # 2^62 bytes are more than any file system takes in one file.
    with pytest.raises(ConfigError, match=r"^replay\.path = .*; name a directory that") as caught:
        Ring(2**60, {"float32": 1}, str(tmp_path))
    assert repr(str(tmp_path)) in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("kept")

    with pytest.raises(ConfigError, match=r"^replay\.path = "):
        Ring(10, WIDTHS, str(tmp_path / "file"))

    assert (tmp_path / "file").read_text() == "kept"


def test_a_sample_of_rows_in_files_is_memory_of_its_own(tmp_path):
    def filled(path):
        store = TransitionStore(20, LAYOUT, path)
        replay = Replay(store, Uniform(), np.random.SeedSequence(0))
        numbers = np.arange(33)
        wide = np.repeat(numbers[:, None], 4, axis=1).astype(np.uint8)
        action, flat = np.zeros((33, 2), np.float32), numbers.astype(np.float32)
        for t in numbers:
            part = Transition(wide, action, flat, flat, wide)
            replay.append(LAYOUT.pack(Transition(*(leaf[t : t + 1] for leaf in part[:5]))))
        return replay

    mapped, plain = filled(str(tmp_path)), filled(None)
    sample = mapped.sample(3, 40)
    assert bits(sample.rows) == bits(plain.sample(3, 40).rows)

    for array in sample.rows.values():
        assert array.flags.owndata and array.flags.writeable
        array[:] = 77

    assert bits(mapped.sample(3, 40).rows) == bits(plain.sample(3, 40).rows)


CHILD = """
import pathlib, re, resource, sys
import numpy as np
from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.transitions import TransitionStore
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.types import ArraySpec, EnvSpec, Layout, Transition

ROOM = 100 * 2**20
layout = Layout(EnvSpec(ArraySpec((128,), "float32"), action_size=2, discrete=True))
capacity = 3 * ROOM // (4 * (2 * 128 + 3))
data = int(re.search(r"VmData:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
resource.setrlimit(resource.RLIMIT_DATA, (data * 1024 + ROOM,) * 2)
path = sys.argv[1] or None
try:
    store = TransitionStore(capacity, layout, path)
except MemoryError:
    sys.exit("MemoryError")
assert store.ring.row_bytes * capacity > 2.99 * ROOM
replay = Replay(store, Uniform(), np.random.SeedSequence(0))
for first in range(0, capacity * 5 // 4, 1000):
    numbers = np.arange(first, first + 1000)
    wide, flat = np.repeat(numbers[:, None], 128, axis=1).astype("f"), numbers.astype("f")
    replay.append(layout.pack(Transition(wide, numbers.astype("i"), flat, flat, wide)))
total, seen = store.ring.total, set()
for _ in range(100):
    sample = replay.sample(4, 1000)
    assert total - capacity <= sample.ids.min() and sample.ids.max() < total
    for array in sample.rows.values():
        assert np.all(array == sample.ids[..., None])
    seen |= set(sample.ids.ravel().tolist())
assert len(replay) == capacity and len(seen) > 0.5 * capacity
replay.check_valid()
print("right", capacity)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux only")
def test_a_ring_of_three_times_the_memory_allowed_is_filled_and_sampled(tmp_path):
    # 100 MiB more than at the start, a ring of 300 MiB: 303,641 rows of 1,036 bytes
    def child(path):
        return subprocess.run(
            [sys.executable, "-c", CHILD, path],
            capture_output=True,
            text=True,
            timeout=500,
            cwd=pathlib.Path(__file__).parents[2],
        )

    mapped, plain = child(str(tmp_path)), child("")

    assert (mapped.returncode, mapped.stdout, mapped.stderr) == (0, "right 303641\n", "")
    assert (plain.returncode, plain.stderr) == (1, "MemoryError\n")
