"""What asynchrony is for: an env that takes 20 ms for every step, sleeping.

    python benchmarks/slow_env.py            # --peer needs the extra `peers`

SAC on HalfCheetah-v5 with 20 ms slept per step, 4 actor threads, one update per env step: env
steps/s over the smaller of the bare update's rate and 4 actors times 50 steps/s; with `--peer` also
over SBX's with the same env, in turns. Appends JSON lines to `benchmarks/results/slow_env.jsonl`.
"""

import json
import pathlib
import statistics
import subprocess
import sys

import tyro
from machine import RESULTS, context
from throughput import Bare, run_ours

SLEEP, ACTORS = 0.02, 4


def main(rounds: int = 3, seconds: float = 40.0, peer: bool = False) -> None:
    """Measures in turns."""
    bare, ours, limits, theirs = Bare("sac"), [], [], []
    changes = {"actor.num_actors": ACTORS, "learner.updates_per_call": 8}
    for _ in range(rounds):
        limits.append(min(bare.rate(5.0), ACTORS / SLEEP))
        ours.append(run_ours("sac", "HalfCheetah-v5", seconds, changes, SLEEP)[0])
        if peer:
            script = str(pathlib.Path(__file__).with_name("peers.py"))
            command = [sys.executable, script, "sbx", "SAC", "HalfCheetah-v5", "2200", str(SLEEP)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            theirs.append(json.loads(done.stdout.splitlines()[-1])["env_steps_per_s"])
    line = {
        "benchmark": "slow_env",
        "value": round(statistics.median(ours) / statistics.median(limits), 3),
        "unit": "env steps/s over min(bare updates/s, actors / seconds per step)",
        "env_steps_per_s": [round(rate, 1) for rate in ours],
        "limit": [round(rate, 1) for rate in limits],
        "over_sbx": round(statistics.median(ours) / statistics.median(theirs), 2) if peer else None,
        "sbx_env_steps_per_s": theirs,
        **context(),
    }
    print(json.dumps(line), flush=True)
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "slow_env.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
