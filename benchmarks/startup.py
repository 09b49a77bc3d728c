"""What it costs to start: CPU seconds, each in a fresh process, in turns.

    python benchmarks/startup.py

`list` is `python -m jaxrl_async list` over importing jax, flax.linen, optax, gymnasium and tyro;
`import` is `import jaxrl_async` alone, measured inside the process. Appends JSON lines to
`benchmarks/results/startup.jsonl`.
"""

import json
import resource
import statistics
import subprocess
import sys

import tyro
from machine import RESULTS, context

PACKAGES = "import jax, flax.linen, optax, gymnasium, tyro"
IMPORT = (
    "import time; start = time.process_time(); import jaxrl_async;"
    "print(time.process_time() - start)"
)


def cpu_seconds(*arguments: str) -> float:
    """User and system time of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int = 9) -> None:
    """Measures in turns."""
    found: dict[str, list[float]] = {"list": [], "packages": [], "import": []}
    for _ in range(rounds):
        found["list"].append(cpu_seconds("-m", "jaxrl_async", "list"))
        found["packages"].append(cpu_seconds("-c", PACKAGES))
        done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True)
        found["import"].append(float(done.stdout))
    medians = {name: statistics.median(values) for name, values in found.items()}
    lines = [
        {
            "benchmark": "startup/list",
            "value": round(medians["list"] / medians["packages"], 3),
            "unit": "CPU seconds over those of importing the packages",
            "seconds": {name: round(medians[name], 3) for name in ("list", "packages")},
        },
        {
            "benchmark": "startup/import",
            "value": round(medians["import"], 4),
            "unit": "CPU seconds",
        },
    ]
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "startup.jsonl").open("a") as file:
        for line in lines:
            line |= context()
            print(json.dumps(line))
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
