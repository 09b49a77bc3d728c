"""The floor rules, held over the source: who imports whom, and what stands nowhere."""

import ast
import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import jaxrl_async

PACKAGE = pathlib.Path(jaxrl_async.__file__).parent
ROOT = PACKAGE.name

FLOORS = {
    "checks": -1,  # the ground that configs stand on
    **dict.fromkeys(("types", "config", "overrides", "seeding"), 0),
    **dict.fromkeys(("ops", "nets", "replay", "envs", "recorders"), 1),
    "agents": 2,
    "runtime": 3,
    "backends": 4,
    **dict.fromkeys(("api", "plotting", "cli"), 5),
    **dict.fromkeys(("__init__", "__main__"), 6),  # the package's front: late imports only
}
SIDEWAYS = {("nets", "ops.distributions")}
DOORS = ("api", "plotting", "cli")  # loose files, but one room: the notebook's and the shell's
WITHOUT_JAX = (
    *("checks", "types", "config", "overrides", "seeding"),
    *("replay", "envs", "recorders", "__init__"),
)
PICKLES = ("pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve")
NO_HOME = ("utils", "util", "common", "helpers", "helper", "misc")


class Import(NamedTuple):
    """One imported name, in full."""

    name: str
    line: int
    typing_only: bool  # under ``if TYPE_CHECKING``


class Module:
    """One file of the package, parsed."""

    def __init__(self, path: str, source: str):
        """``path`` is relative to the package, as in ``replay/ring.py``."""
        self.path, self.source, self.tree = path, source, ast.parse(source)
        self.name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.room = self.name.partition(".")[0]

    @functools.cached_property
    def imports(self) -> list[Import]:
        return list(self._imports(self.tree, typing_only=False))

    def _imports(self, node: ast.AST, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = f"{'.' * node.level}{node.module or ''}"
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, typing_only)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from self._imports(child, typing_only=True)
            for child in node.orelse:
                yield from self._imports(child, typing_only)
        else:
            for child in ast.iter_child_nodes(node):
                yield from self._imports(child, typing_only)

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        """Local name -> full name of what was imported, so that no alias hides anything."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    full = alias.name if alias.asname else alias.name.partition(".")[0]
                    found[alias.asname or full] = full
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return found

    def full_name(self, node: ast.AST) -> str:
        """``jax.config.update`` of such an expression under any alias; "" if it is none."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.full_name(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def mentions(self) -> Iterator[tuple[str, int]]:
        """The full names of all imports and of all dotted expressions, with their lines."""
        for found in self.imports:
            yield found.name, found.line
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute):
                yield self.full_name(node), node.lineno

    def at(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


def is_within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# ---- the rules, each a function from a module to what is wrong with it -----------------------


def imports_go_down(module: Module) -> Iterator[str]:
    if module.room not in FLOORS:
        yield module.at(1, f"{module.room} has no floor")
        return
    for name, line, _ in module.imports:
        if name.startswith("."):
            yield module.at(line, f"relative import of {name}")
        if not is_within(name, ROOT):
            continue
        inside = name.removeprefix(ROOT).removeprefix(".") or "__init__"
        room = inside.partition(".")[0]
        if room not in FLOORS:
            room = "__init__"  # a public name, as in ``from jaxrl_async import train``
        sideways = any(module.room == upper and is_within(inside, edge) for upper, edge in SIDEWAYS)
        same_room = room == module.room or (room in DOORS and module.room in DOORS)
        if not (same_room or sideways or FLOORS[room] < FLOORS[module.room]):
            yield module.at(
                line,
                f"{module.room} (floor {FLOORS[module.room]}) imports {name} ({FLOORS[room]})",
            )


def the_floors_without_jax_import_none(module: Module) -> Iterator[str]:
    if module.room in WITHOUT_JAX:
        for name, line, typing_only in module.imports:
            if is_within(name, "jax", "jaxlib", "flax", "optax", "chex", "orbax"):
                if not (typing_only and is_within(name, "jax")):
                    yield module.at(line, f"imports {name}")


def linen_stays_in_nets(module: Module) -> Iterator[str]:
    if module.room != "nets":
        for name, line in module.mentions():
            if is_within(name, "flax.linen", "flax.nnx"):
                yield module.at(line, name)


def orbax_stays_in_the_checkpointer(module: Module) -> Iterator[str]:
    if module.name != "runtime.checkpoint":
        for name, line in module.mentions():
            if is_within(name, "orbax"):
                yield module.at(line, name)


def threads_stay_in_replay_and_runtime(module: Module) -> Iterator[str]:
    if module.room not in ("replay", "runtime"):
        for name, line in module.mentions():
            if is_within(name, "threading", "_thread", "concurrent.futures.ThreadPoolExecutor"):
                yield module.at(line, name)


def nothing_unpickles_evaluates_or_forks(module: Module) -> Iterator[str]:
    for name, line in module.mentions():
        if is_within(name, *PICKLES, "os.fork", "os.forkpty", "os.system", "os.popen"):
            yield module.at(line, name)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            called = module.full_name(node.func).removeprefix("builtins.")
            if called in ("eval", "exec"):
                yield module.at(node.lineno, f"{called}(...)")


def no_argument_opens_a_door(module: Module) -> Iterator[str]:
    """allow_pickle, daemon, shell: False is the only value that may be written down."""

    def is_false(value: ast.AST) -> bool:
        return isinstance(value, ast.Constant) and value.value is False

    for node in ast.walk(module.tree):
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "daemon", "shell"):
            if not is_false(node.value):
                yield module.at(node.lineno, ast.unparse(node))
        if isinstance(node, ast.Assign) and not is_false(node.value):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr == "daemon":
                    yield module.at(node.lineno, ast.unparse(node))


def importing_changes_nothing_around(module: Module) -> Iterator[str]:
    """No XLA flags anywhere; no jax.config at module level."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and node.value == "XLA_FLAGS":
            yield module.at(node.lineno, "XLA_FLAGS")
    for node in at_import(module.tree):
        name = module.full_name(node)
        if is_within(name, "jax.config.update") or name.startswith("jax.config.jax_"):
            yield module.at(getattr(node, "lineno", 0), name)


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """All that runs when the module is imported: no bodies of functions."""
    if isinstance(node, ast.Lambda):
        return
    yield node
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children = [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        if child is not None:
            yield from at_import(child)


def only_the_shells_door_prints(module: Module) -> Iterator[str]:
    if module.name != "cli":
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name) and node.id == "print":
                yield module.at(node.lineno, "print")


def everything_has_a_name_and_fits_on_a_few_screens(module: Module) -> Iterator[str]:
    parts = module.path.removesuffix(".py").split("/")
    if any(part in NO_HOME for part in parts):
        yield module.at(1, "a thing has a name or no home")
    if (count := len(module.source.splitlines())) > 300:
        yield module.at(count, f"{count} lines in one file, of at most 300")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or 0) - node.lineno + 1
            most = 90 if node.name == "update" else 60
            if count > most:
                yield module.at(node.lineno, f"{node.name} has {count} lines, of at most {most}")


RULES = (
    imports_go_down,
    the_floors_without_jax_import_none,
    linen_stays_in_nets,
    orbax_stays_in_the_checkpointer,
    threads_stay_in_replay_and_runtime,
    nothing_unpickles_evaluates_or_forks,
    no_argument_opens_a_door,
    importing_changes_nothing_around,
    only_the_shells_door_prints,
    everything_has_a_name_and_fits_on_a_few_screens,
)


@functools.cache
def modules() -> list[Module]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [Module(str(f.relative_to(PACKAGE).as_posix()), f.read_text()) for f in files]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps_the_rule(rule):
    broken = [message for module in modules() for message in rule(module)]

    assert broken == []


def test_the_rules_see_the_whole_package():
    names = {module.name for module in modules()}

    assert {"types", "config", "replay.ring", "agents", "agents.sac", "runtime.trainer"} <= names
    assert any(name == f"{ROOT}.ops.distributions" for m in modules() for name in imported(m))


def imported(module: Module) -> set[str]:
    return {found.name.rpartition(".")[0] for found in module.imports}


# ---- the rules do catch what they are for --------------------------------------------------

LONG_FUNCTION = "def act():\n" + "    pass\n" * 60  # 61 lines
LONG_UPDATE = "def update():\n" + "    pass\n" * 90  # 91 lines


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (imports_go_down, "replay/ring.py", "from jaxrl_async.runtime import actor"),
        (imports_go_down, "replay/ring.py", "from jaxrl_async.envs.make import EnvFactory"),
        (imports_go_down, "replay/ring.py", "from jaxrl_async import runtime"),
        (imports_go_down, "replay/ring.py", "from jaxrl_async import train"),
        (imports_go_down, "replay/ring.py", "import jaxrl_async"),
        (imports_go_down, "replay/ring.py", "def f():\n    import jaxrl_async.agents.sac"),
        (imports_go_down, "replay/ring.py", "from ..runtime import actor"),
        (imports_go_down, "types.py", "from jaxrl_async.config import RunConfig"),
        (imports_go_down, "nets/heads.py", "from jaxrl_async.ops.td import huber"),
        (imports_go_down, "nets/heads.py", "from jaxrl_async.ops import td"),
        (imports_go_down, "ops/td.py", "from jaxrl_async.nets.torso import MLP"),
        (imports_go_down, "api.py", "from jaxrl_async import Trainer"),
        (imports_go_down, "tools/new.py", "import numpy"),
        (the_floors_without_jax_import_none, "replay/ring.py", "import jax.numpy as jnp"),
        (the_floors_without_jax_import_none, "envs/make.py", "def f():\n    import jax"),
        (the_floors_without_jax_import_none, "recorders/csv.py", "from jax import Array"),
        (the_floors_without_jax_import_none, "types.py", "import jax"),
        (the_floors_without_jax_import_none, "config.py", "import optax"),
        (linen_stays_in_nets, "agents/sac.py", "import flax.linen as nn"),
        (linen_stays_in_nets, "agents/sac.py", "from flax import linen"),
        (linen_stays_in_nets, "agents/sac.py", "import flax\nclass A(flax.linen.Module): ..."),
        (orbax_stays_in_the_checkpointer, "runtime/policy.py", "import orbax.checkpoint"),
        (threads_stay_in_replay_and_runtime, "envs/vector.py", "import threading"),
        (threads_stay_in_replay_and_runtime, "api.py", "from threading import Lock"),
        (nothing_unpickles_evaluates_or_forks, "runtime/policy.py", "import pickle"),
        (nothing_unpickles_evaluates_or_forks, "runtime/policy.py", "from joblib import load"),
        (nothing_unpickles_evaluates_or_forks, "cli.py", "eval('1')"),
        (nothing_unpickles_evaluates_or_forks, "cli.py", "import builtins as b\nb.exec('1')"),
        (nothing_unpickles_evaluates_or_forks, "envs/make.py", "import os as o\no.fork()"),
        (nothing_unpickles_evaluates_or_forks, "envs/make.py", "from os import fork"),
        (no_argument_opens_a_door, "runtime/policy.py", "np.load(f, allow_pickle=True)"),
        (no_argument_opens_a_door, "runtime/policy.py", "np.load(f, allow_pickle=given)"),
        (no_argument_opens_a_door, "runtime/actor.py", "Thread(target=f, daemon=True)"),
        (no_argument_opens_a_door, "runtime/actor.py", "thread.daemon = True"),
        (no_argument_opens_a_door, "api.py", "run('ls', shell=True)"),
        (importing_changes_nothing_around, "api.py", "os.environ['XLA_FLAGS'] = ''"),
        (importing_changes_nothing_around, "api.py", "def f():\n    os.environ['XLA_FLAGS']"),
        (importing_changes_nothing_around, "api.py", "import jax\njax.config.update('a', 1)"),
        (importing_changes_nothing_around, "api.py", "from jax import config\nconfig.update(1)"),
        (
            importing_changes_nothing_around,
            "api.py",
            "import jax as j\nif 1:\n    j.config.update(1)",
        ),
        (only_the_shells_door_prints, "api.py", "def f():\n    print(1)"),
        (only_the_shells_door_prints, "agents/sac.py", "f(key=print)"),
        (everything_has_a_name_and_fits_on_a_few_screens, "runtime/utils.py", ""),
        (everything_has_a_name_and_fits_on_a_few_screens, "common/files.py", ""),
        (everything_has_a_name_and_fits_on_a_few_screens, "api.py", "\n" * 301),
        (everything_has_a_name_and_fits_on_a_few_screens, "api.py", LONG_FUNCTION),
        (everything_has_a_name_and_fits_on_a_few_screens, "api.py", LONG_UPDATE),
    ],
)
def test_what_breaks_the_rule_is_seen(rule, path, source):
    assert len(list(rule(Module(path, source)))) >= 1


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (imports_go_down, "nets/heads.py", "from jaxrl_async.ops.distributions import TanhNormal"),
        (imports_go_down, "nets/heads.py", "from jaxrl_async.ops import distributions"),
        (imports_go_down, "nets/heads.py", "from jaxrl_async.nets.torso import MLP"),
        (imports_go_down, "agents/sac.py", "from jaxrl_async import checks as check"),
        (imports_go_down, "cli.py", "from jaxrl_async.api import evaluate_policy"),
        (imports_go_down, "__main__.py", "from jaxrl_async.cli import main"),
        (
            the_floors_without_jax_import_none,
            "types.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import jax",
        ),
        (the_floors_without_jax_import_none, "runtime/learner.py", "import jax"),
        (linen_stays_in_nets, "agents/sac.py", "import flax.struct\nflax.struct.dataclass"),
        (no_argument_opens_a_door, "runtime/policy.py", "np.load(f, allow_pickle=False)"),
        (nothing_unpickles_evaluates_or_forks, "api.py", "agent.eval()\nself.exec()"),
        (
            importing_changes_nothing_around,
            "cli.py",
            "import jax\ndef main():\n    jax.config.update(1)",
        ),
        (only_the_shells_door_prints, "cli.py", "print(1)"),
        (only_the_shells_door_prints, "recorders/console.py", "console.print(1)"),
        (
            everything_has_a_name_and_fits_on_a_few_screens,
            "agents/sac.py",
            LONG_FUNCTION.replace("act", "update"),
        ),
    ],
)
def test_what_keeps_the_rule_is_left_alone(rule, path, source):
    assert list(rule(Module(path, source))) == []


# ---- in a fresh process --------------------------------------------------------------------

IMPORT_THE_FLOORS_WITHOUT_JAX = """
import importlib, pkgutil, sys

def load(name):
    module = importlib.import_module(name)
    if "jax" in sys.modules:
        sys.exit(f"jax came in with {name}")
    return module

load("jaxrl_async")
for name in ("config", "types", "seeding", "envs", "recorders", "replay"):
    module = load(f"jaxrl_async.{name}")
    for part in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}."):
        load(part.name)
print(*sorted(name for name in sys.modules if name.startswith("jaxrl_async")))
"""

IMPORT_SECONDS = """
import time

start = time.process_time()
import jaxrl_async
print(time.process_time() - start)
"""


def fresh_process(code: str) -> str:
    """What a new interpreter prints; the package is found as it was found here."""
    path = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_replay_envs_recorders_and_config_leave_jax_out():
    loaded = fresh_process(IMPORT_THE_FLOORS_WITHOUT_JAX).split()

    assert {f"{ROOT}.replay.replay", f"{ROOT}.envs.vector", f"{ROOT}.recorders.csv"} <= set(loaded)
    assert f"{ROOT}.agents" not in loaded


def test_importing_the_package_takes_under_a_fifth_of_a_second():
    # Seconds of the process's own work, so other processes hardly count; the best of 3.
    seconds = [float(fresh_process(IMPORT_SECONDS)) for _ in range(3)]

    assert min(seconds) < 0.2
