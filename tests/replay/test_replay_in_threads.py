"""Uniform replay between threads: a sample is of one instant, and nobody touches it again."""

import sys
import threading

import numpy as np
import pytest

from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.transitions import TransitionStore
from jaxrl_async.replay.uniform import Uniform
from jaxrl_async.types import ArraySpec, Chunk, EnvSpec, Layout, Transition, Windows, map_leaves

LONG = 300.0
WIDTH, CHUNK, CAPACITY = 32, 5, 64
SPEC = EnvSpec(ArraySpec((WIDTH,), "float32"), action_size=3, discrete=True)


def certified(first, actor):
    """Transitions first, first + 1, ... whose every field holds their number."""
    numbers = np.arange(first, first + CHUNK) % 2**24  # exact in float32
    wide = np.repeat(numbers[:, None], WIDTH, axis=1).astype(np.float32)
    flat = numbers.astype(np.float32)
    transitions = Transition(wide, numbers.astype(np.int32), flat, flat, wide)
    windows = Windows(transitions, np.zeros(CHUNK, np.int32), np.zeros(CHUNK, np.uint8))
    return Chunk(windows, actor, 0, CHUNK, (), -1, 0)


@pytest.fixture
def stressed():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("rows", [10**5, pytest.param(10**7, marks=pytest.mark.slow)])
def test_no_row_is_torn_while_two_writers_overwrite_it(stressed, rows):
    # (pytorch/rl #3463, lerobot #2309): the ring is overwritten thousands of times meanwhile
    store = TransitionStore(CAPACITY, Layout(SPEC))
    replay, stop, failed = Replay(store, Uniform(), np.random.SeedSequence(0)), [], []
    replay.add(certified(0, 0))

    def write(actor):
        try:
            number = actor
            while not stop:
                replay.add(certified(number, actor))
                number += CHUNK
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(actor,)) for actor in range(2)]
    for writer in writers:
        writer.start()
    first = replay.sample(64, 1024)  # long enough for the writers to come in between
    kept = map_leaves(np.copy, first.rows)
    torn, drawn, before = 0, 0, first.total
    try:
        while drawn < rows:
            sample = replay.sample(64, 1024)
            row = sample.rows["float32"].reshape(-1, 2 * WIDTH + 2)
            action = sample.rows["int32"].reshape(-1)
            torn += np.count_nonzero((row != action[:, None]).any(axis=1))
            assert sample.total - CAPACITY <= sample.ids.min()
            assert sample.ids.max() < sample.total
            drawn += len(action)
    finally:
        stop.append(True)
        for writer in writers:
            writer.join(LONG)

    assert failed == []
    assert torn == 0
    assert sample.total - before > CAPACITY  # they did write meanwhile
    assert all(np.array_equal(first.rows[dtype], kept[dtype]) for dtype in kept)
