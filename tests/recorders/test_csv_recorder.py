"""CSV files: what a cell holds, which columns there are, and who can read when."""

import csv
import math

import numpy as np
import pytest

from jaxrl_async.recorders import CSVRecorder
from jaxrl_async.recorders.csv import cell


@pytest.fixture
def recorder(tmp_path):
    recorder = CSVRecorder(tmp_path / "run")
    recorder.start({})
    yield recorder
    recorder.close()


def test_a_file_by_hand(recorder, tmp_path):
    recorder.record("train", 50, {"train/q": 0.5, "train/updates": 3.0})
    recorder.record("train", 100, {"train/q": math.nan, "train/updates": 6.0})
    recorder.close()

    written = (tmp_path / "run/train.csv").read_bytes()
    assert written == b"env_steps,train/q,train/updates\n50,0.5,3\n100,,6\n"


@pytest.mark.parametrize("nan", [math.nan, -math.nan, np.float64("nan"), np.float32("nan"), None])
def test_nan_is_an_empty_cell(nan):
    assert cell(nan) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.0, "3"),
        (-200.0, "-200"),
        (12, "12"),
        (2**53 + 1, "9007199254740993"),  # env steps are integers: none is rounded
        (np.int64(7), "7"),
        (True, "1"),
    ],
)
def test_integers_have_no_point(value, text):
    assert cell(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1, "0.1"), (1e-7, "1e-07"), (1e300, "1e+300"), (-2.5e22, "-2.5e+22"), (math.inf, "inf")],
)
def test_a_number_has_its_shortest_text(value, text):
    assert cell(value) == text


@pytest.mark.parametrize(
    "value",
    [0.1, 1 / 3, 1e-300, 5e-324, 1e300, -1.5, math.pi * 1e10, 2.0**60, math.inf, -math.inf],
)
def test_a_number_reads_back_as_itself(recorder, tmp_path, value):
    recorder.record("train", 1, {"train/q": value})

    with open(tmp_path / "run/train.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["train/q"]) == value


def test_a_float32_is_written_as_the_float_it_is():
    # 0.1 as float32 is 0.100000001490116...
    assert cell(np.float32(0.1)) == "0.10000000149011612"


def test_each_row_can_be_read_while_the_run_is_on(recorder, tmp_path):
    for row in range(3):
        recorder.record("evaluation", row, {"evaluation/return_mean": row + 0.5})

        lines = (tmp_path / "run/evaluation.csv").read_text().splitlines()
        assert lines[-1] == f"{row},{row + 0.5}"
        assert len(lines) == row + 2


def test_streams_are_files_of_their_own(recorder, tmp_path):
    recorder.record("train", 1, {"train/q": 1.5})
    recorder.record("timing", 1, {"timing/seconds": 2.5})

    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["timing.csv", "train.csv"]
    assert (tmp_path / "run/timing.csv").read_text() == "env_steps,timing/seconds\n1,2.5\n"


def test_a_column_that_the_first_row_did_not_have_is_refused(recorder, tmp_path):
    recorder.record("train", 1, {"train/q": 1.5})

    with pytest.raises(ValueError, match=r"train\.csv has no column train/a, train/b: .*NaN where"):
        recorder.record("train", 2, {"train/q": 2.5, "train/b": 0.0, "train/a": 0.0})

    assert (tmp_path / "run/train.csv").read_text() == "env_steps,train/q\n1,1.5\n"


def test_columns_keep_their_order_and_a_missing_value_is_an_empty_cell(recorder, tmp_path):
    recorder.record("train", 1, {"train/b": 1.5, "train/a": 2.5})
    recorder.record("train", 2, {"train/a": 4.5, "train/b": 3.5})
    recorder.record("train", 3, {"train/a": 6.5})

    lines = (tmp_path / "run/train.csv").read_text().splitlines()
    assert lines == ["env_steps,train/b,train/a", "1,1.5,2.5", "2,3.5,4.5", "3,,6.5"]


def test_a_name_with_commas_quotes_and_lines_reads_back(recorder, tmp_path):
    name = 'train/"q", of\nboth'
    recorder.record("train", 1, {name: 1.5, "train/after": 2.5})

    with open(tmp_path / "run/train.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row == {"env_steps": "1", name: "1.5", "train/after": "2.5"}


def test_the_directory_is_made_and_closing_twice_is_fine(tmp_path):
    recorder = CSVRecorder(tmp_path / "a/b/c")

    recorder.start({})
    recorder.record("train", 1, {"train/q": 1.5})
    recorder.close()
    recorder.close()

    assert (tmp_path / "a/b/c/train.csv").exists()


def test_closing_without_a_start_writes_nothing(tmp_path):
    CSVRecorder(tmp_path / "run").close()

    assert list(tmp_path.iterdir()) == []
