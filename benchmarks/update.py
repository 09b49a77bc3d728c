"""The bare update: what the learner could do if nothing else ran.

    python benchmarks/update.py sac td3 dqn

Holds fixed: one resident batch per call, HalfCheetah's sizes for sac and td3 (observation 17,
action 6, MLP 256-256, batch 256), CartPole's with RL-Zoo's network for dqn (observation 4, 2
actions, MLP 256-256, batch 64), two calls in flight, float32. For K = 1, 8 and 32 updates in one
compiled call it prints updates/s (median of alternating rounds), the floating-point operations of
one update by XLA's own count, and their share of the machine's rate at 256 x 256 x 256 matrix
products, measured in the same rounds. That count takes both branches of a conditional: td3's policy
update, made every second time, is in each, so its share is too high. Appends one JSON line per
agent and K to `benchmarks/results/update.jsonl`.
"""

import json
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from machine import RESULTS, context

from jaxrl_async.agents import preset
from jaxrl_async.overrides import replace
from jaxrl_async.runtime.learner import Learner, make_mesh
from jaxrl_async.types import ArraySpec, EnvSpec, Layout

HALF_CHEETAH = EnvSpec(ArraySpec((17,), "float32"), 6, False)
CARTPOLE = EnvSpec(ArraySpec((4,), "float32"), 2, True)
UPDATES_PER_CALL = (1, 8, 32)
SIDE, PRODUCTS = 256, 40


def make_learner(name: str, updates_per_call: int) -> tuple[Learner, Callable[[], None]]:
    """A learner, and a function that makes one call on a resident batch."""
    chosen = preset(name)
    spec, size = (CARTPOLE, 64) if name == "dqn" else (HALF_CHEETAH, 256)
    agent = chosen.agent(replace(chosen.config, {"hidden": (256, 256)}), spec)
    learner = Learner(
        agent,
        jax.jit(agent.init)(jax.random.key(0)),
        batch_size=size,
        updates_per_call=updates_per_call,
        key=jax.random.key(1),
        mesh=make_mesh(1),
    )
    rng = np.random.default_rng(0)
    shape = (updates_per_call, size)
    rows = {
        dtype: (
            rng.integers(0, spec.action_size, (*shape, width), np.int32)
            if dtype == "int32"
            else rng.uniform(-1, 1, (*shape, width)).astype(dtype)
        )
        for dtype, width in Layout(spec).widths.items()
    }
    placed = jax.device_put((rows, np.ones(shape, np.float32)), learner.batch_sharding)
    return learner, lambda: learner.step(*placed)


def updates_per_second(learner: Learner, call: Callable[[], None], seconds: float) -> float:
    """Finished updates over the time they took."""
    before, start = learner.done, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
    learner.finish()
    return (learner.done - before) / (time.perf_counter() - start)


def make_ceiling() -> Callable[[float], float]:
    """Measures float operations per second of plain matrix products."""

    @jax.jit
    def chain(a, b):
        return jax.lax.fori_loop(0, PRODUCTS, lambda _, x: a @ x, b)

    a = jnp.eye(SIDE) * 0.999
    chain(a, a).block_until_ready()

    def measure(seconds: float) -> float:
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            chain(a, a).block_until_ready()
            calls += 1
        return calls * PRODUCTS * 2 * SIDE**3 / (time.perf_counter() - start)

    return measure


def main(
    agents: tyro.conf.Positional[tuple[str, ...]] = ("sac", "td3", "dqn"),
    rounds: int = 5,
    seconds: float = 1.5,
) -> None:
    """Measures each agent at each K, alternating with the matrix products."""
    ceiling = make_ceiling()
    RESULTS.mkdir(exist_ok=True)
    for name in agents:
        learners = {k: make_learner(name, k) for k in UPDATES_PER_CALL}
        for learner, call in learners.values():
            learner.compile()
            updates_per_second(learner, call, 0.5)
        flops = learners[1][0].flops_per_update()
        rates: dict[int, list[float]] = {k: [] for k in UPDATES_PER_CALL}
        shares: dict[int, list[float]] = {k: [] for k in UPDATES_PER_CALL}
        for _ in range(rounds):
            for k, (learner, call) in learners.items():
                limit = ceiling(seconds / 3)
                rate = updates_per_second(learner, call, seconds)
                rates[k].append(rate)
                shares[k].append(rate * flops / limit)
        for k in UPDATES_PER_CALL:
            line = {
                "benchmark": "update",
                "agent": name,
                "updates_per_call": k,
                "value": round(statistics.median(rates[k]), 1),
                "unit": "updates/s, bare, resident batch",
                "spread": [round(min(rates[k]), 1), round(max(rates[k]), 1)],
                "gflop_per_update": round(flops / 1e9, 4),
                "share_of_matrix_products": round(statistics.median(shares[k]), 3),
                **context(),
            }
            print(json.dumps(line), flush=True)
            with (RESULTS / "update.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
