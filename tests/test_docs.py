"""The README and docs/, held to what they say.

Blocks run, names exist, defaults and figures are the code's.
"""

import contextlib
import dataclasses
import pathlib
import re
import shlex
from typing import get_args

import gymnasium as gym
import pytest

from jaxrl_async import cli
from jaxrl_async.agents import AGENTS, run_config
from jaxrl_async.config import RunConfig
from jaxrl_async.replay.rate_limiter import RateLimiter
from jaxrl_async.runtime import metrics

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ASYNCHRONY = (ROOT / "docs" / "asynchrony.md").read_text()
SMALL = "1_010"  # env steps: 10 after the warm-up of 1,000


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def shell_lines(prefix):
    lines = "".join(blocks("sh")).splitlines()
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


def command_lines(command):
    lines = shell_lines("python -m jaxrl_async ")
    assert {line.split()[0] for line in lines} == {"list", "train", "evaluate"}
    return [line for line in lines if line.split()[0] == command]


def with_small_budget(text):
    small, count = re.subn(r"env_steps=[\d_]+", f"env_steps={SMALL}", text)
    assert count == text.count("train(")
    return small


def section(title, text=README):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL).group(1)


def table(title, text=README):
    """The cells of a section's only table, without its head."""
    rows = [line for line in section(title, text).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def settings_named_in(text):
    """Fields of a config's parts in backticks; ``evaluation.csv`` is a file."""
    named = re.findall(r"`((?:actor|learner|evaluation|checkpoint|stop|replay)\.\w+)`", text)
    return set(named) - {"evaluation.csv"}


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the Python blocks leave behind, run one after the other in an empty directory."""
    names = {}
    with contextlib.chdir(tmp_path_factory.mktemp("readme")):
        for block in blocks("python"):
            exec(compile(with_small_budget(block), "README.md", "exec"), names)
        names["directory"] = names["result"].summary.directory.resolve()
    return names


def test_the_python_blocks_train_and_act(names):
    action = names["policy"].act(names["observation"])

    assert names["result"].summary.env_steps == 1_010
    assert names["env"].action_space.contains(action)


def test_a_run_leaves_behind_what_the_table_says(names):
    files = {row[0].strip("`/") for row in table("What a run leaves behind")}

    assert {path.name for path in names["directory"].iterdir()} == files
    assert re.fullmatch(r"sac-Pendulum-v1-seed0-\d{8}-\d{6}", names["directory"].name)


def test_the_train_line_asks_for_what_the_text_says(monkeypatch, capsys):
    (line,) = [line for line in command_lines("train") if "--help" not in line]
    configs = []

    class Recording:
        def __init__(self, config):
            configs.append(config)

        def run(self):
            return "trained"

    monkeypatch.setattr("jaxrl_async.runtime.trainer.Trainer", Recording)
    status = cli.main(shlex.split(line))

    assert (status, capsys.readouterr().out) == (0, "trained\n")
    (config,) = configs
    assert (config.agent_name, config.env, config.env_steps) == ("sac", "Pendulum-v1", 20_000)
    (evaluated,) = command_lines("evaluate")
    assert config.directory == shlex.split(evaluated)[1]


def test_the_evaluate_line_scores_a_run(names, capsys):
    (line,) = command_lines("evaluate")
    command, _, *options = shlex.split(line)

    status = cli.main([command, str(names["directory"]), *options])

    assert status == 0
    assert "over 20 episodes of 200 steps" in capsys.readouterr().out


def test_the_list_line_names_every_agent(capsys):
    (line,) = command_lines("list")

    status = cli.main(shlex.split(line))

    assert status == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "}
    assert listed == set(AGENTS)


def test_the_help_lines_of_the_command_line_name_the_settings_that_the_text_names(capsys):
    (line,) = [line for line in command_lines("train") if "--help" in line]

    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main(shlex.split(line))

    output = capsys.readouterr().out
    for option in re.findall(r"`(--[\w.-]+)`", README):
        assert option in output


def test_the_make_targets_exist():
    targets = shell_lines("make ")

    assert targets == ["train", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_leads_somewhere(name):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text())

    assert "docs/asynchrony.md" in links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).is_file(), link


@pytest.mark.parametrize("text", [README, ASYNCHRONY], ids=["README.md", "asynchrony.md"])
def test_every_setting_that_is_named_exists(text):
    config = run_config("sac", "Pendulum-v1")
    settings = settings_named_in(text)

    assert "learner.updates_per_env_step" in settings
    for setting in settings:
        part, field = setting.split(".")
        assert hasattr(getattr(config, part), field), setting


def test_the_results_table_says_what_the_benchmark_does(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import learning

    rows = table("Results")

    assert len(rows) == 3
    for task, agent, mode, env_steps, _, _, _, mark, command in rows:
        python, script, name, *options = shlex.split(command.strip("`"))
        assert (python, script) == ("python", "benchmarks/learning.py")
        assert options == ["--mode", mode]
        assert mode in get_args(learning.Mode)
        row = learning.ROWS[name]
        assert (task, agent) == (row.env, row.agent)
        assert int(env_steps.replace(",", "")) == run_config(agent, task).env_steps
        assert mark == f"{row.passes:g} / {row.floor:g}"
        assert task in gym.registry


def test_every_benchmark_that_is_named_exists():
    scripts = set(re.findall(r"benchmarks/\w+\.py", README + ASYNCHRONY))

    assert len(scripts) >= 4
    for script in scripts:
        assert (ROOT / script).is_file(), script


# ---- docs/asynchrony.md --------------------------------------------------------------------


def test_the_settings_table_has_every_field_of_the_parts_with_its_default():
    config = RunConfig(env="CartPole-v1", agent=AGENTS["dqn"].config)
    defaults = {
        f"{part}.{field.name}": str(field.default)
        for part in ("actor", "learner", "evaluation", "checkpoint", "stop")
        for field in dataclasses.fields(getattr(config, part))
    }

    listed = {
        field.strip("`"): default.replace(",", "")
        for field, default, *_ in table("Settings", ASYNCHRONY)
    }

    assert listed == {"lockstep": str(config.lockstep), **defaults}


def test_every_figure_that_is_named_is_one_that_a_run_records():
    recorded = set()
    for row in re.findall(r"^\| (``.*?) \|", metrics.__doc__, re.MULTILINE):
        first, *others = re.findall(r"``([\w/.]+)``", row)  # the others share its prefix
        recorded |= {first, *(f"{first.partition('/')[0]}/{name}" for name in others)}

    named = set(re.findall(r"`((?:actor|replay|timing)/\w+)`", ASYNCHRONY + README))

    assert {"actor/lag_max", "replay/balance", "timing/update_ms"} <= named
    assert named <= recorded


def test_the_files_and_threads_that_are_named_exist():
    files = set(re.findall(r"`(runtime/\w+\.py)`", ASYNCHRONY))
    driver = (ROOT / "jaxrl_async/runtime/driver.py").read_text()
    threads = re.findall(r"^\| `([\w-]+)`", section("Who calls what", ASYNCHRONY), re.MULTILINE)

    assert all((ROOT / "jaxrl_async" / file).is_file() for file in files)
    assert threads == ["actor-0", "prefetcher", "publisher", "evaluator"]
    for name in ["actor-", *threads[1:]]:
        assert re.search(rf'group\.start\(f?"{name}', driver), name


def test_the_worked_example_is_what_the_rate_limiter_does():
    text = section("The rate limiter", ASYNCHRONY)
    ratio, warmup_steps, calls, slack = (
        int(re.search(rf"`{name}=(\d+)`", text).group(1))
        for name in ("updates_per_env_step", "warmup_steps", "updates_per_call", "slack")
    )
    limits = {"max_insert": 1, "max_update": calls, "budget": 1_000}
    limiter = RateLimiter(ratio, warmup_steps=warmup_steps, slack=slack, **limits)

    for event, passes, *counts in table("The rate limiter", ASYNCHRONY):
        if event.startswith("call"):
            passed = limiter.wait_to_update(calls, timeout=0.0)
        else:
            for _ in range(int(re.match(r"\d*", event).group() or 1)):
                if passed := limiter.wait_to_insert(1, timeout=0.0):
                    limiter.inserted(1)

        assert passed == (passes == "yes"), event
        assert [limiter.env_steps, limiter.updates, limiter.balance] == list(map(int, counts))

    # 2 * (1 * 4 + 8) without a slack of one's own
    assert RateLimiter(ratio, warmup_steps=warmup_steps, slack=None, **limits).slack == 24
    assert "here 24" in text
