"""Several recorders at once."""

import pytest
from small import Memory

from jaxrl_async.recorders import MultiRecorder


class Failing(Memory):
    """Cannot be closed."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def close(self):
        super().close()
        raise self.error


def test_each_gets_everything_in_order():
    calls = []

    class Named(Memory):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def record(self, stream, env_steps, values):
            calls.append((self.name, env_steps))
            super().record(stream, env_steps, values)

    first, second = Named("first"), Named("second")
    recorder = MultiRecorder(first, second)

    recorder.start({"seed": 3})
    recorder.record("train", 10, {"train/q": 1.5})
    recorder.record("evaluation", 20, {"evaluation/episodes": 2.0})
    recorder.close()

    assert calls == [("first", 10), ("second", 10), ("first", 20), ("second", 20)]
    for one in (first, second):
        assert one.config == {"seed": 3}
        assert one.rows["train"] == [{"env_steps": 10, "train/q": 1.5}]
        assert one.rows["evaluation"] == [{"env_steps": 20, "evaluation/episodes": 2.0}]
        assert (one.started, one.closed) == (1, 1)


def test_all_are_closed_where_one_fails_and_its_error_is_raised():
    error = OSError("the disk is full")
    recorders = Memory(), Failing(error), Memory()

    with pytest.raises(ExceptionGroup, match="recorders failed to close") as caught:
        MultiRecorder(*recorders).close()

    assert [one.closed for one in recorders] == [1, 1, 1]
    assert caught.value.exceptions == (error,)


def test_all_errors_of_closing_are_raised():
    errors = OSError("the disk is full"), ValueError("no such run")
    recorders = Failing(errors[0]), Memory(), Failing(errors[1])

    with pytest.raises(ExceptionGroup) as caught:
        MultiRecorder(*recorders).close()

    assert [one.closed for one in recorders] == [1, 1, 1]
    assert caught.value.exceptions == errors


def test_an_error_while_recording_is_raised_at_once():
    class Full(Memory):
        def record(self, stream, env_steps, values):
            raise OSError("the disk is full")

    recorder = MultiRecorder(Memory(), Full())

    with pytest.raises(OSError, match="the disk is full"):
        recorder.record("train", 1, {"train/q": 0.0})


def test_none_at_all_is_fine():
    recorder = MultiRecorder()

    recorder.start({})
    recorder.record("train", 1, {"train/q": 0.0})
    recorder.close()
