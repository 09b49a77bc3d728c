"""Double buffering: one half of the envs is stepped while the other half's actions are computed."""

import threading
import time
import types

import gymnasium as gym
import numpy as np
import pytest
from small import Counting, small

from jaxrl_async.checks import ConfigError
from jaxrl_async.config import ActorConfig
from jaxrl_async.envs.spaces import describe
from jaxrl_async.envs.vector import SerialVectorEnv
from jaxrl_async.runtime import actor
from jaxrl_async.runtime.params import Snapshot
from jaxrl_async.runtime.trainer import Trainer


class Sink:
    def __init__(self, most, stop):
        self.env_steps, self.most, self.stop, self.chunks = 0, most, stop, []

    def add(self, chunk):
        self.chunks.append(chunk)
        self.env_steps += chunk.env_steps
        if self.env_steps >= self.most:
            self.stop.set()


class Policy:
    """Notes what happens; an answer is there ``seconds`` after it was asked for."""

    def __init__(self, events, name, seconds=0.0):
        self.events, self.name, self.seconds = events, name, seconds

    def ask(self, carry, observation, explore, step):
        self.events.append(("ask", self.name))
        due = time.monotonic() + self.seconds

        def answer():
            time.sleep(max(0.0, due - time.monotonic()))
            self.events.append(("answer", self.name))
            return np.zeros(len(observation), np.int32), carry, Snapshot(0, 0, 0.0, {})

        return answer


class Slow(gym.Wrapper):
    def __init__(self, env, seconds):
        super().__init__(env)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return self.env.step(action)


def run(groups, lanes, env_steps, answer=0.0, step=0.0):
    """Runs actors of ``lanes`` envs in ``groups`` groups; the events, and the seconds it took."""
    events, stop = [], threading.Event()
    sink, actors = Sink(env_steps, stop), []
    config = small("dqn", "x", actor__envs_per_actor=lanes, actor__random_steps=0, lockstep=False)
    for index in range(groups):
        env = SerialVectorEnv(lambda: Slow(Counting(10), step), lanes // groups)
        spec, bounds = describe(env.single_observation_space, env.single_action_space)
        agent = types.SimpleNamespace(spec=spec, config=config.agent, initial_carry=lambda b: ())
        one = actor.Actor(
            config,
            agent,
            index=index,
            actors=groups,
            env=env,
            bounds=bounds,
            policy=Policy(events, index, answer),
            sink=sink,
        )
        actors.append(one)
    start = time.monotonic()
    actor.run(actors, stop)
    return events, sink, time.monotonic() - start


def test_each_half_waits_for_its_answer_while_the_other_is_stepped():
    events, sink, _ = run(groups=2, lanes=4, env_steps=12)

    assert events[:8] == [
        *[("ask", 0), ("ask", 1)],
        *[("answer", 0), ("ask", 0)],  # between the two half 0 was stepped, and 1 had asked
        *[("answer", 1), ("ask", 1)],
        *[("answer", 0), ("ask", 0)],
    ]
    assert [chunk.actor for chunk in sink.chunks] == [0, 1, 0, 1, 0, 1]


def test_one_group_asks_and_steps_in_turn():
    events, _, _ = run(groups=1, lanes=2, env_steps=6)

    assert events == [("ask", 0), ("answer", 0)] * 3 + [("ask", 0)]


@pytest.mark.slow  # it is a measurement
def test_16_envs_of_1_ms_and_an_answer_in_8_ms_gain_at_least_30_percent():
    # In turn 16 + 8 ms for 16 steps; with halves 8 + 8, of which one hides behind the other: 1.5.
    ratios = []
    for _ in range(5):
        _, plain, together = run(1, 16, 1_600, answer=0.008, step=0.001)
        _, halves, buffered = run(2, 16, 1_600, answer=0.008, step=0.001)
        ratios.append((halves.env_steps / buffered) / (plain.env_steps / together))

    assert np.median(ratios) >= 1.3, ratios


def test_an_odd_number_of_envs_is_refused():
    with pytest.raises(ConfigError, match=r"envs_per_actor = 3: use an even number"):
        ActorConfig(envs_per_actor=3, double_buffer=True)


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_run_has_the_transitions_of_both_halves(tmp_path, lockstep):
    config = small(
        "dqn",
        "CartPole-v1",
        directory=str(tmp_path),
        lockstep=lockstep,
        actor__num_actors=2,
        actor__envs_per_actor=4,
        actor__double_buffer=True,
    )
    trainer = Trainer(config)

    summary = trainer.run()

    assert len(trainer.parts.actors) == 4
    assert [one.lanes for one in trainer.parts.actors] == [2, 2, 2, 2]
    assert summary.env_steps == len(trainer.parts.replay.contents().reward) >= 300
