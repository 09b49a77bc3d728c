"""Whole runs in threads."""

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction

import gymnasium as gym
import jax
import numpy as np
import pytest
from small import Counting, Memory, small

from jaxrl_async import Policy, Trainer
from jaxrl_async.checks import ConfigError

LONG = 60.0


def run(config, directory, **parts):
    config = dataclasses.replace(config, directory=str(directory), lockstep=False)
    recorder = parts.pop("recorder", Memory())
    trainer = Trainer(config, recorder=recorder, **parts)
    return trainer, trainer.run(), recorder


@pytest.fixture(autouse=True)
def leaves_nothing_behind():
    before = threading.enumerate(), sys.getswitchinterval(), signal.getsignal(signal.SIGINT)
    yield
    assert threading.enumerate() == before[0]
    assert (sys.getswitchinterval(), signal.getsignal(signal.SIGINT)) == before[1:]


def test_a_run_ends_with_exact_counts_and_its_last_version_scored(tmp_path):
    # two actors of two lanes: 300 env steps; (300 - 100) * 0.25 = 50 updates, 16 calls of 3
    config = small(
        "dqn",
        "CartPole-v1",
        actor__num_actors=2,
        actor__envs_per_actor=2,
        learner__updates_per_call=3,
    )

    trainer, summary, recorder = run(config, tmp_path / "run")

    assert 300 <= summary.env_steps < 304
    assert summary.updates == 48
    assert summary.reason == "env_steps reached"
    assert recorder.column("evaluation", "env_steps")[0] == 0
    assert recorder.column("evaluation", "evaluation/version")[-1] == 48
    assert recorder.closed == 1
    last = Policy.load(tmp_path / "run" / "policy_last.npz")
    np.testing.assert_array_equal(
        last.params["params"]["Dense_0"]["kernel"],
        trainer.state.q.params["params"]["Dense_0"]["kernel"],
    )


def test_the_balance_keeps_its_slack_at_every_row(tmp_path):
    config = small(
        "dqn", "CartPole-v1", record_period=1, env_steps=600, learner__updates_per_env_step=1.0
    )

    trainer, summary, recorder = run(config, tmp_path / "run")

    slack = float(trainer.parts.limiter.slack)
    assert slack == 4  # 2 * (1 env step * 1 + 1 update)
    assert all(-slack <= b <= slack for b in recorder.column("train", "replay/balance"))
    assert summary.updates == 500


@pytest.mark.parametrize(
    ("ratio", "actors", "chunk_steps"),
    [
        (0.1, 1, 1),
        (0.25, 4, 1),
        pytest.param(1.0, 2, 3, marks=pytest.mark.slow),
        pytest.param(4.0, 2, 1, marks=pytest.mark.slow),
        (4.0, 1, 5),
    ],
)
def test_the_ratio_is_held_at_every_row_and_exact_at_the_end(tmp_path, ratio, actors, chunk_steps):
    config = small(
        "dqn",
        "Counting",
        record_period=1,
        actor__num_actors=actors,
        actor__chunk_steps=chunk_steps,
        learner__updates_per_env_step=ratio,
        learner__updates_per_call=3,
        evaluation__period=0,
    )

    trainer, summary, recorder = run(config, tmp_path / "run", make_env=Counting)

    slack = float(trainer.parts.limiter.slack)
    assert slack == float(2 * (chunk_steps * Fraction(str(ratio)) + 3))
    assert all(-slack <= b <= slack for b in recorder.column("train", "replay/balance"))
    due = (summary.env_steps - 100) * round(ratio * 100) // 100
    assert summary.updates == due // 3 * 3
    assert 300 <= summary.env_steps < 300 + actors * chunk_steps


def test_actors_stop_at_the_slack_while_the_learner_compiles(tmp_path, monkeypatch):
    # (acme #212)
    from jaxrl_async.replay.rate_limiter import RateLimiter
    from jaxrl_async.runtime.learner import Learner

    refused, found = threading.Event(), []
    wait_to_insert, compile_step = RateLimiter.wait_to_insert, Learner.compile

    def wait(self, env_steps, timeout):
        is_admitted = wait_to_insert(self, env_steps, timeout)
        if not is_admitted:
            found.append((self.env_steps, self.balance))
            refused.set()
        return is_admitted

    def compiles_long(self):
        if not found:
            assert refused.wait(LONG)
        compile_step(self)

    monkeypatch.setattr(RateLimiter, "wait_to_insert", wait)
    monkeypatch.setattr(Learner, "compile", compiles_long)
    config = small("dqn", "Counting", learner__updates_per_env_step=1.0, record_period=1)

    _, summary, recorder = run(config, tmp_path / "run", make_env=Counting)

    assert found[0] == (104, 4.0)  # the warm-up's 100, and the slack of 2 * (1 + 1)
    assert all(-4 <= b <= 4 for b in recorder.column("train", "replay/balance"))
    assert summary.updates == 200


def test_every_row_has_the_health_of_the_run(tmp_path):
    _, _, recorder = run(small("dqn", "CartPole-v1"), tmp_path / "run")

    lags = {f"actor/lag{unit}_{of}" for unit in ("", "_env_steps") for of in ("mean", "p99", "max")}
    assert lags <= set(recorder.rows["train"][-1])
    assert set(recorder.rows["timing"][-1]) == {
        "env_steps",
        *(
            f"timing/{name}"
            for name in (
                *("seconds", "remaining_s", "env_steps_per_s", "updates_per_s", "update_ms"),
                *("sample_ms", "transfer_ms", "queue", "actors_blocked", "learner_blocked"),
            )
        ),
    }


def test_policy_lag_is_bounded_on_request(tmp_path):
    config = small(
        "dqn",
        "CartPole-v1",
        env_steps=400,
        record_period=1,
        learner__updates_per_env_step=1.0,
        actor__max_policy_lag=2,
    )

    _, summary, recorder = run(config, tmp_path / "run")

    lags = [lag for lag in recorder.column("train", "actor/lag_max") if not np.isnan(lag)]
    # 2 when the actions were asked for, and at most the slack's 4 updates until the chunk came
    assert max(lags) <= 6
    assert summary.updates == 300


class Failing(Counting):
    """Fails at its tenth step over all episodes."""

    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 10:
            raise RuntimeError("the simulator is gone")
        return super().step(action)


def test_an_actor_that_fails_ends_the_run_with_its_error(tmp_path):
    config = small("dqn", "Failing", actor__num_actors=2, evaluation__period=0)

    with pytest.raises(RuntimeError, match="the simulator is gone") as raised:
        run(config, tmp_path / "run", make_env=Failing)

    assert "raised in thread 'actor-" in raised.value.__notes__[0]
    assert any(entry.name == "step" for entry in raised.traceback)


def test_an_evaluation_that_fails_ends_the_run_with_its_error(tmp_path):
    config = small("dqn", "Counting", evaluation__episodes=4)

    with pytest.raises(RuntimeError, match="the simulator is gone") as raised:
        run(config, tmp_path / "run", make_env=Counting, make_evaluation_env=lambda: Failing(20))

    assert raised.value.__notes__ == ["raised in thread 'evaluator'"]


def test_a_learner_that_fails_stops_the_actors(tmp_path, monkeypatch):
    from jaxrl_async.runtime.learner import Learner

    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

    def fails(self, rows, weight):
        raise FloatingPointError("poisoned")

    monkeypatch.setattr(Learner, "step", fails)
    with pytest.raises(FloatingPointError, match="poisoned"):
        run(small("dqn", "Closing", actor__num_actors=3), tmp_path / "run", make_env=Closing)

    assert len(closed) == 3 + 2


class Stopping:
    """Stops, or fails, at its first evaluation; keeps the threads that it was called on."""

    def __init__(self, error=None):
        self.error, self.threads = error, set()

    def on_record(self, stream, env_steps, values):
        self.threads.add(threading.current_thread())

    def on_evaluation(self, evaluation):
        self.threads.add(threading.current_thread())
        if self.error is not None:
            raise self.error
        return True


def test_a_callback_can_stop_the_run(tmp_path):
    callback = Stopping()

    config = small("dqn", "CartPole-v1", env_steps=100_000)
    _, summary, _ = run(config, tmp_path / "run", callbacks=[callback])

    assert summary.reason == "Stopping said so"
    assert summary.env_steps < 100_000
    assert callback.threads == {threading.current_thread()}
    assert (tmp_path / "run/policy_last.npz").is_file()


def test_a_callback_that_fails_reaches_the_caller(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(
            small("dqn", "CartPole-v1", env_steps=100_000),
            tmp_path / "run",
            callbacks=[Stopping(ZeroDivisionError())],
        )


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ({"updates": 20}, "20 updates made"),
        ({"seconds": 0.001}, "0.001 s passed"),
        ({"score": 3.0}, "score 3.0 reached 3.0"),
    ],
)
@pytest.mark.parametrize("lockstep", [False, True])
def test_stop_criteria(tmp_path, stop, reason, lockstep):
    config = small("dqn", "Counting", env_steps=50_000)
    config = dataclasses.replace(
        config,
        directory=str(tmp_path / "run"),
        lockstep=lockstep,
        stop=dataclasses.replace(config.stop, **stop),
    )

    trainer = Trainer(config, make_env=Counting, recorder=Memory())
    summary = trainer.run()

    assert summary.reason == reason
    assert summary.env_steps < 50_000
    assert Policy.load(tmp_path / "run").act(np.zeros(1)) in (0, 1)


def test_each_function_is_traced_once(tmp_path, monkeypatch):
    from jaxrl_async.agents.dqn import DQN

    traces = {"act": [], "update": []}

    def counted(name):
        original = getattr(DQN, name)

        def wrapper(self, *arguments):
            traces[name].append(jax.tree.leaves(arguments)[-1].shape)
            return original(self, *arguments)

        return wrapper

    for name in traces:
        monkeypatch.setattr(DQN, name, counted(name))
    config = small(
        "dqn", "CartPole-v1", actor__num_actors=3, actor__envs_per_actor=4, actor__random_steps=0
    )

    run(config, tmp_path / "run")

    assert sorted(traces["act"]) == [(2,), (4,)]  # evaluation's rows and an actor's
    # once for the names of the metrics, and once inside the compiled scan
    assert len(traces["update"]) == 2


def test_a_trainer_off_the_main_thread_leaves_signals_alone(tmp_path):
    results = []
    config = small("dqn", "CartPole-v1")

    thread = threading.Thread(target=lambda: results.append(run(config, tmp_path / "run")[1]))
    thread.start()
    thread.join(LONG)

    assert results[0].env_steps == 300


def test_impossible_lag_and_free_running_lockstep_are_refused():
    with pytest.raises(ConfigError, match=r"max_policy_lag = 3: use at least .* = 4"):
        small(
            "dqn",
            "x",
            actor__max_policy_lag=3,
            learner__updates_per_call=2,
            learner__publish_period=3,
        )
    with pytest.raises(ConfigError, match="use a number in lockstep"):
        small("dqn", "x", learner__updates_per_env_step=None)


def test_free_running_ends_at_the_budget(tmp_path):
    config = small("dqn", "Counting", lockstep=False, learner__updates_per_env_step=None)

    _, summary, _ = run(config, tmp_path / "run", make_env=Counting)

    assert summary.env_steps == 300


INTERRUPTED = """
import sys, threading
sys.path.insert(0, {tests!r})
from small import Memory, small
from jaxrl_async import Trainer


class Ready(Memory):
    def record(self, stream, env_steps, values):
        if stream == "train":
            print("training", flush=True)


config = small("dqn", "CartPole-v1", env_steps=10**8, lockstep=False, directory={directory!r})
print(Trainer(config, recorder=Ready()).run().reason)
print([thread.name for thread in threading.enumerate()])
"""


def test_ctrl_c_ends_in_good_order(tmp_path):
    script = INTERRUPTED.format(
        tests=os.path.dirname(os.path.dirname(__file__)), directory=str(tmp_path / "run")
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n"

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG)

    assert process.returncode == 0, err
    assert out.splitlines()[-2:] == ["interrupted", "['MainThread']"]
    assert Policy.load(tmp_path / "run" / "policy_last.npz").card["env_steps"] > 0


@pytest.mark.slow
def test_ctrl_c_takes_at_most_two_seconds(tmp_path):
    class Interrupts(Counting):
        def step(self, action):
            if not at and len(started) > 2 and threading.current_thread().name == "actor-0":
                at.append(time.monotonic())
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

    class Ready(Memory):
        def record(self, stream, env_steps, values):
            if stream == "train" and values["train/updates"] > 0:
                started.append(env_steps)

    at, started = [], []
    config = small("dqn", "Interrupts", env_steps=10**8, actor__num_actors=2)
    _, summary, _ = run(config, tmp_path / "run", make_env=Interrupts, recorder=Ready())

    assert summary.reason == "interrupted"
    assert time.monotonic() - at[0] < 2.0
    assert Policy.load(tmp_path / "run").act(np.zeros(1)) in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["env", "evaluation", "learner", "callback"])
def test_an_error_reaches_the_caller_within_a_second(tmp_path, monkeypatch, where):
    from jaxrl_async.runtime.learner import Learner

    at = []

    def fail(*arguments):
        at.append(time.monotonic())
        raise RuntimeError(f"from the {where}")

    class Fails(Counting):
        def step(self, action):
            return fail() if self.t == 2 and started else super().step(action)

    class Watching(Stopping):
        def on_record(self, stream, env_steps, values):
            if values.get("train/updates", 0) > 0:
                started.append(env_steps)
                if where == "callback":
                    fail()

        def on_evaluation(self, evaluation):
            pass

    started = []
    factories = {"env": ("make_env",), "evaluation": ("make_evaluation_env",)}.get(where, ())
    if where == "learner":
        monkeypatch.setattr(Learner, "step", fail)
    config = small("dqn", "Counting", env_steps=10**8, actor__num_actors=2)
    with pytest.raises(RuntimeError, match=f"from the {where}"):
        run(
            config,
            tmp_path / "run",
            callbacks=[Watching()],
            **{"make_env": Counting, **dict.fromkeys(factories, Fails)},
        )

    assert time.monotonic() - at[0] < 1.0


@pytest.mark.slow
def test_fifty_runs_leave_nothing_behind(tmp_path):
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    def once(number):
        config = small("dqn", "CartPole-v1", env_steps=120, actor__num_actors=2)
        run(config, tmp_path / str(number))
        gc.collect()
        return threading.active_count(), open_files(), len(jax.live_arrays())

    once(0)
    first = once(1)

    for number in range(2, 50):
        found = once(number)

    assert found == first


@pytest.mark.parametrize("name", ["Pendulum-v1"])
def test_sac_in_threads_stores_every_step_once(tmp_path, name):
    config = small("sac", name, actor__num_actors=2, evaluation__period=0)

    trainer, summary, _ = run(config, tmp_path / "run")

    stored = trainer.parts.replay.contents()
    assert len(stored.reward) == summary.env_steps
    assert isinstance(gym.make(name).action_space, gym.spaces.Box)
    assert np.abs(stored.action).max() <= 1.0


@pytest.mark.parametrize("lockstep", [False, True])
def test_an_env_that_also_fails_to_close_hides_no_error(tmp_path, lockstep):
    class Worse(Failing):
        def close(self):
            raise OSError("nothing to close")

    config = small("dqn", "Worse", evaluation__period=0)
    config = dataclasses.replace(config, lockstep=lockstep, directory=str(tmp_path / "run"))
    with pytest.raises(RuntimeError, match="the simulator is gone") as raised:
        Trainer(config, make_env=Worse, recorder=Memory()).run()

    assert "then closing an env failed: OSError('nothing to close')" in raised.value.__notes__


def test_a_factory_that_gives_one_env_to_all_is_refused(tmp_path):
    env = Counting()

    with pytest.raises(ConfigError, match="the same env twice: make a new one each time"):
        run(small("dqn", "x", actor__num_actors=2), tmp_path / "run", make_env=lambda: env)


def test_envs_that_differ_are_refused(tmp_path):
    discrete = iter([True, False])

    with pytest.raises(ConfigError, match="make all alike"):
        run(
            small("dqn", "x", actor__num_actors=2, evaluation__period=0),
            tmp_path / "run",
            make_env=lambda: Counting(discrete=next(discrete)),
        )


def test_ctrl_c_ends_an_evaluation_in_lockstep_too(tmp_path):
    class Interrupting(Counting):
        def step(self, action):
            if self.t == 3 and self is evaluated[0]:
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

        def reset(self, *, seed=None, options=None):
            evaluated.append(self)
            return super().reset(seed=seed, options=options)

    evaluated = []

    config = small("dqn", "Counting", directory=str(tmp_path / "run"))
    trainer = Trainer(
        config,
        make_env=Counting,
        make_evaluation_env=lambda: Interrupting(length=10**9),
        recorder=Memory(),
    )

    assert trainer.run().reason == "interrupted"
    assert trainer.history == []
