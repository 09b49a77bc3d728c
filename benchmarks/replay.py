"""The replay alone: time to draw and to add, and memory, against peers where there are any.

    python benchmarks/replay.py uniform
    python benchmarks/replay.py prioritized
    python benchmarks/replay.py add
    python benchmarks/replay.py memory

Needs the extra `peers`; without it `uniform` compares with the bare take only, `prioritized` and
`add` give our times alone. Holds fixed: transitions of HalfCheetah's sizes (observation 17, action
6, float32), batches of 256, one thread, every slot of every buffer written with random values
before anything is timed, peers on the CPU. The sides take turns in one process, in blocks of about
`seconds`; a ratio is taken within a round, the value is its median over the rounds.

`uniform`: the whole `Replay.sample(16, 256)`, by which one call of the learner gets its batches,
per batch. Over drawing 16 x 256 row numbers and one bare `np.take` from the same packed array: at
most 1.35. Over `ReplayBuffer.sample(256)` of Stable-Baselines3: at most 1/12. Over flashbax's flat
buffer, its `sample` of 256 compiled with the split of its key: at most 1/8. Peers draw one batch
per call; `us_per_batch` also has ours drawn so.

`prioritized`: a sample and the update of its priorities, per batch, drawn one or 8 in a call, over
cpprb's `PrioritizedReplayBuffer`: at most 1/2. Alpha 0.6, beta 0.4, epsilon and the errors alike.
cpprb takes the largest weight over the buffer, we over the batch unless `--norm buffer`.

`add`: one transition of one env step, into a full buffer. Ours is a ready `Chunk`; flashbax's add
is compiled and writes in place. A row of flashbax holds no next observation, the others' do.

`memory`: what a process with a filled replay holds in memory over one with an empty replay of the
same capacity; both are fresh, and have filled a small replay before. `uniform`: over the packed
size of the transitions, at most 1.02. `frames`: bytes per transition that can be drawn, at most
7,300, of stacks of 4 frames of 84 x 84 uint8 from 4 lanes with episodes of 200 steps; the replay
has room for just `frames` transitions and what their episodes begin with.

Appends JSON lines to `benchmarks/results/replay.jsonl`.
"""

import importlib.metadata
import importlib.util
import itertools
import json
import math
import pathlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import tyro
from machine import RESULTS, context

from jaxrl_async.replay.frames import FrameStore
from jaxrl_async.replay.prioritized import EPSILON, Prioritized
from jaxrl_async.replay.replay import Replay
from jaxrl_async.replay.transitions import Store, TransitionStore
from jaxrl_async.replay.uniform import Sampler, Uniform
from jaxrl_async.types import (
    GOES_ON,
    TERMINATED,
    ArraySpec,
    Chunk,
    EnvSpec,
    Layout,
    Transition,
    Windows,
    map_leaves,
)

RESULT = RESULTS / "replay.jsonl"
PEERS = ("stable-baselines3", "torch", "flashbax", "cpprb")
HALF_CHEETAH = EnvSpec(ArraySpec((17,), "float32"), 6, False)
LAYOUT = Layout(HALF_CHEETAH)
BATCH = 256
ALPHA, BETA = 0.6, 0.4
STACK, LANES, EPISODE = 4, 4, 200
PIXELS = EnvSpec(ArraySpec((STACK, 84, 84), "uint8"), 6, True)

Call = Callable[[], object]


# ---- what is drawn from --------------------------------------------------------------------


def random_transitions(count: int, seed: int = 0) -> Transition:
    """Transitions [count, ...] whose values are all different."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal((count, *shape), np.float32)

    discount = np.full(count, 0.99, np.float32)
    return Transition(normal(17), np.tanh(normal(6)), normal(), discount, normal(17))


def chunk_of(transitions: Transition, end: np.ndarray, env_steps: int) -> Chunk:
    """The message of an actor with one lane for each row."""
    lane = np.arange(len(end), dtype=np.int32)
    return Chunk(Windows(transitions, lane, end), 0, 0, env_steps, (), -1, 0)


def filled_replay(transitions: Transition, sampler: Sampler) -> tuple[Replay, TransitionStore]:
    """A replay that holds just these."""
    store = TransitionStore(len(transitions.reward), LAYOUT)
    replay = Replay(store, sampler, np.random.SeedSequence(0))
    replay.append(LAYOUT.pack(transitions))
    return replay, store


def prioritized(capacity: int, norm: Literal["batch", "buffer"] = "batch") -> Prioritized:
    return Prioritized(capacity, exponent=ALPHA, importance=lambda _: BETA, norm=norm)


def sb3_buffer(transitions: Transition) -> Any:
    """Stable-Baselines3's, full."""
    import gymnasium as gym
    from stable_baselines3.common.buffers import ReplayBuffer

    count = len(transitions.reward)
    observation = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action = gym.spaces.Box(-1.0, 1.0, (6,), np.float32)
    buffer = ReplayBuffer(count, observation, action, device="cpu")
    buffer.observations[:, 0] = transitions.observation
    buffer.next_observations[:, 0] = transitions.next_observation
    buffer.actions[:, 0] = transitions.action
    buffer.rewards[:, 0] = transitions.reward
    buffer.dones[:], buffer.timeouts[:] = 0.0, 0.0
    buffer.full = True
    return buffer


def flashbax_buffer(transitions: Transition) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Flashbax's flat buffer, its full state on the CPU, and one of its rows."""
    import flashbax
    import jax

    fields = ("observation", "action", "reward", "discount")
    rows = {name: getattr(transitions, name) for name in fields}
    row = {name: array[0] for name, array in rows.items()}
    sizes = {
        "max_length": len(transitions.reward),
        "min_length": BATCH,
        "sample_batch_size": BATCH,
    }
    cpu = jax.devices("cpu")[0]
    filler = flashbax.make_flat_buffer(**sizes, add_sequences=True)
    state = jax.device_put(filler.init(jax.device_put(row, cpu)), cpu)
    state = jax.jit(filler.add, donate_argnums=0)(state, rows)
    return flashbax.make_flat_buffer(**sizes), jax.block_until_ready(state), row


def cpprb_rows(transitions: Transition) -> dict[str, np.ndarray]:
    return {
        "obs": transitions.observation,
        "act": transitions.action,
        "rew": transitions.reward,
        "next_obs": transitions.next_observation,
        "done": 1.0 - transitions.discount,
    }


def cpprb_buffer(kind: str, transitions: Transition, **options: Any) -> Any:
    """One of cpprb's classes, full."""
    import cpprb

    rows = cpprb_rows(transitions)
    fields = {name: {"shape": array.shape[1:] or 1} for name, array in rows.items()}
    buffer = getattr(cpprb, kind)(len(transitions.reward), fields, **options)
    buffer.add(**rows)
    return buffer


def has_peers() -> bool:
    """Whether there is somebody to compare with; says so if not."""
    modules = [name.replace("-", "_") for name in PEERS]
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        print(f"without {', '.join(missing)}: install the extra `peers`", file=sys.stderr)
    return not missing


# ---- timing --------------------------------------------------------------------------------


def microseconds(sides: Mapping[str, Call], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Time per call of each side, in every round; a block takes about ``seconds``."""
    calls = {}
    for name, call in sides.items():
        call()
        start, calls[name] = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            call()
            calls[name] += 1
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                call()
            found[name].append(1e6 * (time.perf_counter() - start) / calls[name])
    return found


def medians(found: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def ratio(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """The median of the ratios within each round, and their range."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    spread = [round(min(ratios), 4), round(max(ratios), 4)]
    return {"value": round(statistics.median(ratios), 4), "spread": spread}


def uniform(transitions: int = 200_000, rounds: int = 41, seconds: float = 0.1) -> None:
    """Drawing without priorities."""
    calls = 16
    held = random_transitions(transitions)
    replay, store = filled_replay(held, Uniform())
    packed = store.ring._rows["float32"]
    rng = np.random.default_rng(0)
    sides: dict[str, Call] = {
        "ours": lambda: replay.sample(calls, BATCH),
        "take": lambda: packed.take(rng.integers(0, transitions, calls * BATCH), axis=0),
        "ours, one batch per call": lambda: replay.sample(1, BATCH),
    }
    limits = {"take": 1.35}
    if has_peers():
        buffer = sb3_buffer(held)
        sides["sb3"] = lambda: buffer.sample(BATCH)
        sides["flashbax"] = flashbax_sample(held)
        limits |= {"sb3": 1 / 12, "flashbax": 1 / 8}
    del held
    found = microseconds(sides, rounds, seconds)
    for name in ("ours", "take"):
        found[name] = [value / calls for value in found[name]]
    for name, limit in limits.items():
        write(
            {
                "benchmark": f"replay/uniform/{name}",
                **ratio(found["ours"], found[name]),
                "unit": f"time per batch of 256 over that of {name}",
                "at_most": round(limit, 4),
                "us_per_batch": medians(found),
                "transitions": transitions,
                "batches_per_call": calls,
            }
        )


def flashbax_sample(transitions: Transition) -> Call:
    """Draws a batch; the split of the key is compiled with it."""
    import jax

    buffer, state, _ = flashbax_buffer(transitions)

    @jax.jit
    def sample(state, key):
        key, now = jax.random.split(key)
        return buffer.sample(state, now), key

    key = jax.device_put(jax.random.key(0), jax.devices("cpu")[0])

    def call() -> None:
        nonlocal key
        batch, key = sample(state, key)
        jax.block_until_ready(batch)

    return call


def prioritized_draws(
    capacity: int = 1_000_000,
    rounds: int = 41,
    seconds: float = 0.1,
    norm: Literal["batch", "buffer"] = "batch",
) -> None:
    """Drawing with priorities, and their update."""
    held = random_transitions(capacity)
    replay, _ = filled_replay(held, prioritized(capacity, norm))
    errors = np.abs(np.random.default_rng(1).standard_normal(capacity, np.float32))
    replay.update_priorities(np.arange(capacity), errors)

    def ours(calls: int) -> Call:
        blocks = blocks_of(errors, (calls, BATCH))

        def call() -> None:
            sample = replay.sample(calls, BATCH)
            replay.update_priorities(sample.ids, next(blocks))

        return call

    sides = {f"ours, {calls} per call": ours(calls) for calls in (1, 8)}
    if has_peers():
        buffer = cpprb_buffer("PrioritizedReplayBuffer", held, alpha=ALPHA, eps=EPSILON)
        buffer.update_priorities(np.arange(capacity), errors)
        blocks = blocks_of(errors, (BATCH,))

        def theirs() -> None:
            sample = buffer.sample(BATCH, BETA)
            buffer.update_priorities(sample["indexes"], next(blocks))

        sides["cpprb"] = theirs
    del held
    found = microseconds(sides, rounds, seconds)
    found["ours, 8 per call"] = [value / 8 for value in found["ours, 8 per call"]]
    for calls in (1, 8):
        own = found[f"ours, {calls} per call"]
        line = {"value": medians({"": own})[""], "unit": "us per batch of 256"}
        if "cpprb" in found:
            line = {
                **ratio(own, found["cpprb"]),
                "unit": "time per batch of 256 over that of cpprb",
                "at_most": 0.5,
            }
        write(
            {
                "benchmark": "replay/prioritized",
                **line,
                "us_per_batch": medians(found),
                "capacity": capacity,
                "batches_per_call": calls,
                "norm": norm,
            }
        )


def blocks_of(errors: np.ndarray, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """One piece of the errors after the other, for ever."""
    count = math.prod(shape)
    whole = errors[: len(errors) // count * count]
    return itertools.cycle(whole.reshape(-1, *shape))


def add(transitions: int = 200_000, rounds: int = 41, seconds: float = 0.1) -> None:
    """Adding one transition."""
    held = random_transitions(transitions)
    chunk = chunk_of(map_leaves(lambda leaf: leaf[:1], held), np.zeros(1, np.uint8), 1)
    plain, _ = filled_replay(held, Uniform())
    with_priorities, _ = filled_replay(held, prioritized(transitions))
    sides: dict[str, Call] = {
        "ours": lambda: plain.add(chunk),
        "ours, prioritized": lambda: with_priorities.add(chunk),
    }
    if has_peers():
        sides |= peers_adding(held)
    found = medians(microseconds(sides, rounds, seconds))
    for name, value in found.items():
        write(
            {
                "benchmark": f"replay/add/{name}",
                "value": value,
                "unit": "us per transition",
                "transitions": transitions,
            }
        )


def peers_adding(held: Transition) -> dict[str, Call]:
    """Adds of one transition."""
    import jax

    one = map_leaves(lambda leaf: leaf[:1], held)
    done, infos = np.zeros(1, bool), [{}]
    buffer = sb3_buffer(held)
    flat, state, row = flashbax_buffer(held)
    flashbax_add = jax.jit(flat.add, donate_argnums=0)

    def add_to_flashbax() -> None:
        nonlocal state
        state = jax.block_until_ready(flashbax_add(state, row))

    rows = cpprb_rows(one)
    ring = cpprb_buffer("ReplayBuffer", held)
    tree = cpprb_buffer("PrioritizedReplayBuffer", held, alpha=ALPHA, eps=EPSILON)
    return {
        "sb3": lambda: buffer.add(
            one.observation, one.next_observation, one.action, one.reward, done, infos
        ),
        "flashbax": add_to_flashbax,
        "cpprb": lambda: ring.add(**rows),
        "cpprb, prioritized": lambda: tree.add(**rows),
    }


# ---- memory --------------------------------------------------------------------------------


def memory(transitions: int = 1_000_000, frames: int = 100_000) -> None:
    """What a filled replay takes; processes one after the other, about 0.75 GB each at most."""
    taken, _ = grown("uniform", transitions)
    write(
        {
            "benchmark": "replay/memory/uniform",
            "value": round(taken / (row_bytes(LAYOUT) * transitions), 4),
            "unit": "memory over the packed size of the transitions",
            "at_most": 1.02,
            "bytes": taken,
            "transitions": transitions,
        }
    )
    taken, drawable = grown("frames", frames)
    write(
        {
            "benchmark": "replay/memory/frames",
            "value": round(taken / drawable, 1),
            "unit": "bytes per transition that can be drawn",
            "at_most": 7_300,
            "bytes": taken,
            "transitions": drawable,
            "whole_stacks": row_bytes(Layout(PIXELS)),
        }
    )


def row_bytes(layout: Layout) -> int:
    """Bytes of one packed transition."""
    return sum(np.dtype(dtype).itemsize * width for dtype, width in layout.widths.items())


def grown(kind: str, count: int) -> tuple[int, int]:
    """Bytes that a filled replay's process holds over an empty one's, and what can be drawn."""
    found = []
    for flag in ("--filled", "--no-filled"):
        command = [sys.executable, __file__, "rss", "--kind", kind, "--count", str(count), flag]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    filled, empty = found
    return filled["rss"] - empty["rss"], filled["drawable"]


def rss(kind: Literal["uniform", "frames"], count: int, filled: bool = False) -> None:
    """One replay with room for ``count`` transitions; prints the memory of its process."""
    make, chunks = KINDS[kind]

    def replay_for(most: int) -> tuple[Replay, Store]:
        store = make(most)
        return Replay(store, Uniform(), np.random.SeedSequence(0)), store

    small, _ = replay_for(1_000)  # the code and what it needs once
    for chunk in chunks(1_000):
        small.add(chunk)
    del small
    replay, store = replay_for(count)
    for chunk in chunks(count if filled else 0):
        replay.add(chunk)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    ids = np.arange(store.ring.oldest, store.ring.total)
    drawable = int(np.count_nonzero(store.may_draw(ids))) if filled else 0
    print(json.dumps({"rss": pages * resource.getpagesize(), "drawable": drawable}))


def frame_store(count: int) -> Store:
    """With room for so many steps and what their episodes begin with."""
    capacity = count + STACK * -(-count // EPISODE)
    return FrameStore(capacity, PIXELS, stack=STACK, n_step=1, discount=0.99)


def transition_chunks(count: int) -> Iterator[Chunk]:
    """HalfCheetah's transitions, up to 1,000 in a message."""
    for start in range(0, count, 1_000):
        size = min(1_000, count - start)
        yield chunk_of(random_transitions(size, start), np.zeros(size, np.uint8), size)


def frame_chunks(count: int) -> Iterator[Chunk]:
    """Steps of stacked random frames of all lanes, so many or a few more."""
    rng, shape = np.random.default_rng(0), PIXELS.observation.shape[1:]

    def random(frames: int) -> np.ndarray:
        return rng.integers(0, 256, (LANES, frames, *shape), np.uint8)

    after = random(STACK)
    for step in range(-(-count // LANES)):
        before = random(STACK) if step % EPISODE == 0 else after
        after = np.concatenate([before[:, 1:], random(1)], axis=1)
        action = rng.integers(0, PIXELS.action_size, LANES, np.int32)
        reward, discount = rng.random(LANES, np.float32), np.full(LANES, 0.99, np.float32)
        ends = TERMINATED if step % EPISODE == EPISODE - 1 else GOES_ON
        steps = Transition(before, action, reward, discount, after)
        yield chunk_of(steps, np.full(LANES, ends, np.uint8), LANES)


KINDS: dict[str, tuple[Callable[[int], Store], Callable[[int], Iterator[Chunk]]]] = {
    "uniform": (lambda count: TransitionStore(count, LAYOUT), transition_chunks),
    "frames": (frame_store, frame_chunks),
}


def write(line: dict[str, Any]) -> None:
    """Prints and keeps a result."""
    line |= context()
    for name in PEERS:
        if importlib.util.find_spec(name.replace("-", "_")) is not None:
            line["versions"][name] = importlib.metadata.version(name)
    print(json.dumps(line), flush=True)
    RESULTS.mkdir(exist_ok=True)
    with RESULT.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict(
        {
            "uniform": uniform,
            "prioritized": prioritized_draws,
            "add": add,
            "memory": memory,
            "rss": rss,
        }
    )
