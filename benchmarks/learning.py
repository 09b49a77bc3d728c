"""Learning quality: N seeds of one row, against its pass mark.

    python benchmarks/learning.py cartpole-dqn --seeds 0 1 2 --mode lockstep

Holds fixed: the agent's tuned settings for the task (`jaxrl_async.agents.AGENTS`), the greedy
policy, 20 episodes per evaluation. A seed's score is the mean of its last 3 evaluations; a row
passes when the mean over seeds reaches `passes` and every seed reaches `floor`. Appends one JSON
line per seed to `benchmarks/results/learning.jsonl`, the evaluations in it, and prints the verdict
over all lines of the row there, whichever commit they are of.
"""

import dataclasses
import json
import pathlib
import tempfile
from typing import Any, Literal

import numpy as np
import tyro
from machine import RESULTS, context

from jaxrl_async.agents import run_config
from jaxrl_async.runtime.trainer import Trainer

Mode = Literal["threads", "lockstep"]
RESULT = RESULTS / "learning.jsonl"


@dataclasses.dataclass(frozen=True)
class Row:
    """One task with its marks."""

    agent: str
    env: str
    passes: float
    floor: float
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)


ROWS = {
    "cartpole-dqn": Row("dqn", "CartPole-v1", 475, 400),
    "inverted-pendulum-td3": Row("td3", "InvertedPendulum-v5", 950, 900),
    "pendulum-sac": Row("sac", "Pendulum-v1", -180, -220),
    "pendulum-td3": Row("td3", "Pendulum-v1", -180, -220),
    "half-cheetah-sac": Row("sac", "HalfCheetah-v5", 4900, 4000),
    "half-cheetah-td3": Row("td3", "HalfCheetah-v5", 4500, 3500),
    "pendulum-ddpg": Row("ddpg", "Pendulum-v1", -180, -220),
}


def run_seed(name: str, seed: int, mode: Mode) -> dict[str, Any]:
    """Trains one seed; the line that is appended."""
    row = ROWS[name]
    with tempfile.TemporaryDirectory() as directory:
        changes = {
            "seed": seed,
            "directory": directory,
            "lockstep": mode == "lockstep",
            "evaluation.episodes": 20,
            **row.changes,
        }
        trainer = Trainer(run_config(row.agent, row.env, changes))
        summary = trainer.run()
    scores = [(e.snapshot.env_steps, e.score) for e in trainer.evaluations]
    return {
        "benchmark": "learning",
        "row": name,
        "agent": row.agent,
        "env": row.env,
        "mode": mode,
        "seed": seed,
        "value": float(np.mean([score for _, score in scores[-3:]])),
        "unit": "return, mean of the last 3 evaluations of 20 episodes",
        "best": max(score for _, score in scores),
        "env_steps": summary.env_steps,
        "updates": summary.updates,
        "seconds": round(summary.seconds, 1),
        "evaluations": scores,
        **context(),
    }


def verdict(name: str, mode: Mode) -> str:
    """Mean, interquartile mean and pass or fail over the recorded seeds of a row."""
    row = ROWS[name]
    lines = [json.loads(line) for line in RESULT.read_text().splitlines()]
    newest = {
        line["seed"]: line["value"] for line in lines if (line["row"], line["mode"]) == (name, mode)
    }
    values = np.sort(list(newest.values()))
    cut = len(values) // 4
    middle = values[cut : len(values) - cut]
    passed = len(values) >= 3 and values.mean() >= row.passes and values.min() >= row.floor
    return (
        f"{name} ({mode}): {len(values)} seeds, mean {values.mean():.1f}, IQM {middle.mean():.1f},"
        f" min {values.min():.1f}; pass mark {row.passes}, floor {row.floor}:"
        f" {'PASS' if passed else 'FAIL'}"
    )


def main(
    rows: tyro.conf.Positional[tuple[str, ...]],
    seeds: tuple[int, ...] = (0, 1, 2),
    mode: Mode = "threads",
) -> None:
    """Runs the seeds of the rows, one after the other."""
    RESULTS.mkdir(exist_ok=True)
    for name in rows:
        for seed in seeds:
            line = run_seed(name, seed, mode)
            with pathlib.Path(RESULT).open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name} seed {seed}: {line['value']:.1f} in {line['seconds']:.0f} s", flush=True)
        print(verdict(name, mode), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
