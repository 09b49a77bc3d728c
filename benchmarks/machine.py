"""What every result says of where and with what it was measured."""

import importlib.metadata
import os
import pathlib
import platform
import subprocess
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"


def context() -> dict[str, Any]:
    """Machine, versions and commit, the last with "+" where files differ from it."""
    packages = ("jax", "jaxlib", "flax", "optax", "gymnasium", "numpy")
    return {
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        "commit": commit(),
    }


def processor() -> str:
    """The processor's own name where the system tells it."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """The checked-out commit."""

    def git(*arguments: str) -> str:
        root = pathlib.Path(__file__).parent
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "../jaxrl_async")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
