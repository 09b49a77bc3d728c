"""What each example reaches, and how long it takes: the figures that their docstrings state.

    python benchmarks/examples.py quickstart dqn_cartpole custom_env custom_agent

Runs `main()` of each file in `examples/` as it stands, seed 0, in threads, and appends the mean
return of its last evaluation and the seconds to `benchmarks/results/examples.jsonl`.
"""

import csv
import importlib.util
import json
import pathlib
import tempfile
import time

import tyro
from machine import RESULTS, context

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
ALL = ("quickstart", "dqn_cartpole", "custom_env", "custom_agent")


def run(name: str) -> dict[str, float]:
    """The last row of the example's `evaluation.csv`, and the seconds that it took."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with tempfile.TemporaryDirectory() as directory:
        start = time.monotonic()
        module.main(directory=directory)
        seconds = time.monotonic() - start
        with open(pathlib.Path(directory) / "evaluation.csv") as file:
            last = list(csv.DictReader(file))[-1]
    return {key: float(value) for key, value in last.items() if value} | {"seconds": seconds}


def main(names: tyro.conf.Positional[tuple[str, ...]] = ALL) -> None:
    """Runs the examples, one after the other."""
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        found = run(name)
        line = {
            "benchmark": f"examples/{name}",
            "value": round(found["evaluation/return_mean"], 2),
            "unit": "return, mean of the last evaluation",
            "success": found.get("evaluation/success_mean"),
            "env_steps": int(found["env_steps"]),
            "seconds": round(found["seconds"], 1),
            **context(),
        }
        print(json.dumps(line), flush=True)
        with (RESULTS / "examples.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
