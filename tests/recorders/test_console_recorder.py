"""The console: plain lines without a terminal, a bar with one, and nothing left behind."""

import io
import math
import sys
import threading

import pytest

from jaxrl_async.recorders import ConsoleRecorder

RATES = {"timing/env_steps_per_s": 1234.0, "timing/updates_per_s": 310.0}
SCORE = {
    "evaluation/return_mean": -150.25,
    "evaluation/return_std": 20.5,
    "evaluation/episodes": 10.0,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """The same terminal everywhere, whatever the tests run in."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "25")


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when the test says so."""
    now = [1_000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def begin(file, agent="sac", env="Pendulum-v1"):
    recorder = ConsoleRecorder(file)
    recorder.start({"env_steps": 20_000, "agent_name": agent, "env": env})
    return recorder


def test_without_a_terminal_a_run_is_plain_lines(clock):
    file = io.StringIO()

    recorder = begin(file)
    recorder.record("train", 1_000, {"actor/return_mean": -1200.5, "train/q": 3.0})
    recorder.record("timing", 1_000, {**RATES, "timing/remaining_s": 16.4})
    recorder.record("evaluation", 10_000, SCORE)
    recorder.close()

    assert file.getvalue() == (
        "sac on Pendulum-v1: 20,000 env steps\n"
        "      1,000 env steps: 1,234 env steps/s, 310 updates/s, training return -1,200.5,"
        " 16 s left\n"
        "     10,000 env steps: evaluation return -150.2 ± 20.5 (10 episodes)\n"
    )


def test_plain_lines_keep_ten_seconds_apart_but_evaluations_come_at_once(clock):
    file = io.StringIO()
    recorder = begin(file)

    for second in range(0, 25, 5):  # 0, 5, 10, 15, 20: shown at 0, 10 and 20
        clock[0] = 1_000.0 + second
        recorder.record("timing", 100 * second, RATES)
        recorder.record("train", 100 * second, {"train/q": 1.0})
    recorder.record("evaluation", 2_000, SCORE)
    recorder.record("evaluation", 2_001, SCORE)

    starts = [line.split(" env steps")[0].strip() for line in file.getvalue().splitlines()[1:]]
    assert starts == ["0", "1,000", "2,000", "2,000", "2,001"]


def test_nan_leaves_the_last_value_in_sight(clock):
    file = io.StringIO()
    recorder = begin(file)

    recorder.record("train", 100, {"actor/return_mean": 5.0})
    recorder.record("train", 200, {"actor/return_mean": math.nan})
    recorder.record("timing", 200, RATES)

    assert "training return 5.0" in file.getvalue()
    assert "nan" not in file.getvalue()


def test_an_evaluation_without_episodes_says_so():
    file = io.StringIO()
    recorder = begin(file)

    empty = {"return_mean": math.nan, "return_std": math.nan, "episodes": 0.0}
    recorder.record("evaluation", 100, {f"evaluation/{name}": v for name, v in empty.items()})

    assert "evaluation return nan ± nan (0 episodes)" in file.getvalue()


def test_a_long_name_stays_on_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    file, name = io.StringIO(), "a_package.of_envs:" + "Long" * 30 + "-v0"

    begin(file, env=name)

    assert file.getvalue() == f"sac on {name}: 20,000 env steps\n"


def test_a_terminal_shows_a_bar_and_lines_above_it():
    file = Terminal()

    recorder = begin(file)
    recorder.record("train", 5_000, {"actor/return_mean": -7.5})
    recorder.record("timing", 5_000, RATES)
    recorder.record("evaluation", 10_000, SCORE)
    recorder.close()

    text = file.getvalue()
    assert "sac on Pendulum-v1" in text
    assert "━" in text
    assert "5,000/20,000" in text
    assert "1,234 env steps/s, 310 updates/s, training return -7.5" in text
    assert "     10,000 env steps: evaluation return -150.2 ± 20.5 (10 episodes)\n" in text


def test_a_terminal_is_left_as_it_was():
    before = sys.stdout, sys.stderr, threading.enumerate()
    file = Terminal()

    recorder = begin(file)
    recorder.record("train", 5_000, {"actor/return_mean": -7.5})
    threads = threading.enumerate()
    recorder.close()
    recorder.close()

    text = file.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # cursor hidden, and shown
    assert text.rindex("\x1b[?25h") > text.rindex("━")
    assert (sys.stdout, sys.stderr, threading.enumerate()) == before
    assert threads == before[2]  # no thread draws


def test_a_closed_bar_makes_room_for_the_next():
    file = Terminal()
    for name in ("first", "second"):
        recorder = begin(file, env=name)
        recorder.record("train", 5_000, {"actor/return_mean": -7.5})
        recorder.close()

    assert "sac on first" in file.getvalue()
    assert "sac on second" in file.getvalue()


def test_closing_without_a_start_prints_nothing():
    for file in (io.StringIO(), Terminal()):
        ConsoleRecorder(file).close()

        assert file.getvalue() == ""


@pytest.mark.parametrize("make_file", [io.StringIO, Terminal])
@pytest.mark.parametrize("name", ["[bold]x[/bold]", "[/]", "[link=https://a.b]c[/link]", ":tiger:"])
def test_names_are_no_markup(make_file, name):
    file = make_file()

    recorder = begin(file, agent=name, env=name)
    recorder.record("train", 5_000, {"actor/return_mean": -7.5})
    recorder.close()

    assert f"{name} on {name}" in file.getvalue()


# Red; the window's title and a bell; the screen cleared; one line forged as two; a C1 control.
HOSTILE = ["\x1b[31mred", "\x1b]0;title\x07x", "\x1b[2Jx", "a\nforged: b", "a\rb", "\x9b31mx"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_hold_no_control_sequences_without_a_terminal(name):
    file = io.StringIO()

    recorder = begin(file, agent=name, env=name)
    recorder.close()

    text = file.getvalue()
    assert text.endswith(": 20,000 env steps\n")
    assert text[:-1].isprintable()
    visible = "".join(letter if letter.isprintable() else " " for letter in name).split()
    assert all(text.count(part) >= 2 for part in visible)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_hold_no_control_sequences_in_a_terminal(name):
    harmless, hostile = Terminal(), Terminal()

    for file, title in ((harmless, "name"), (hostile, name)):
        recorder = begin(file, agent=title, env=title)
        recorder.record("train", 5_000, {"actor/return_mean": -7.5})
        recorder.close()

    # the bar has its own: their kinds and numbers must be those of a run with a harmless name
    def controls(file):
        text = file.getvalue()
        return {mark: text.count(mark) for mark in ("\x1b", "\x07", "\r", "\n", "\x9b")}

    assert controls(hostile) == controls(harmless)
