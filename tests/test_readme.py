"""The README, held to what it says: its blocks run, its names exist, its figures are the code's."""

import contextlib
import pathlib
import re
import shlex

import gymnasium as gym
import pytest

from jaxrl_async import cli
from jaxrl_async.agents import AGENTS, run_config

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
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


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL).group(1)


def table(title):
    """The cells of a section's table, without its head."""
    rows = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


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
    files = {row[0].strip("`") for row in table("What a run leaves behind")}

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


def test_every_link_leads_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)

    assert len(links) >= 10
    for link in links:
        assert (ROOT / link).is_file(), link


def test_every_setting_in_the_tables_exists():
    config = run_config("sac", "Pendulum-v1")
    settings = set(re.findall(r"`((?:learner|actor|evaluation|replay)\.(?!csv)\w+)`", README))

    assert "learner.updates_per_env_step" in settings
    for setting in settings:
        part, field = setting.split(".")
        assert hasattr(getattr(config, part), field), setting


def test_the_results_table_says_what_the_benchmark_does(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import learning

    rows = table("Results")

    assert len(rows) == 3
    for task, agent, env_steps, _, _, _, mark, command in rows:
        name = command.strip("`").removeprefix("python benchmarks/learning.py ")
        row = learning.ROWS[name]
        assert (task, agent) == (row.env, row.agent)
        assert int(env_steps.replace(",", "")) == run_config(agent, task).env_steps
        assert mark == f"{row.passes:g} / {row.floor:g}"
        assert task in gym.registry
