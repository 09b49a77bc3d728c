"""Runs that end in a second: what the tests of whole runs start from."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_async.agents import run_config
from jaxrl_async.config import RunConfig
from jaxrl_async.overrides import replace

SMALL = {
    "lockstep": True,
    "env_steps": 300,
    "record_period": 50,
    "replay.capacity": 1_000,
    "replay.n_step": 1,
    "actor.random_steps": 50,
    "learner.batch_size": 16,
    "learner.warmup_steps": 100,
    "learner.updates_per_env_step": 0.25,
    "learner.updates_per_call": 1,
    "learner.publish_period": 1,
    "evaluation.period": 100,
    "evaluation.episodes": 2,
    "agent.hidden": (16, 16),
}


def small(agent: str, env: str, **changes: Any) -> RunConfig:
    """A config of 300 env steps and 50 updates; ``changes`` by dotted name, dots as ``__``."""
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return replace(run_config(agent, env), SMALL, dotted)


class Memory:
    """A recorder that remembers."""

    def __init__(self):
        self.rows: dict[str, list[dict[str, float]]] = {"train": [], "evaluation": [], "timing": []}
        self.started = self.closed = 0

    def start(self, config: Mapping[str, Any]) -> None:
        self.started += 1
        self.config = config

    def record(self, stream: str, env_steps: int, values: Mapping[str, float]) -> None:
        self.rows[stream].append({"env_steps": env_steps, **values})

    def close(self) -> None:
        self.closed += 1

    def column(self, stream: str, name: str) -> list[float]:
        return [row[name] for row in self.rows[stream]]


class Counting(gym.Env):
    """Counts its steps: observation t, reward 1, an episode of ``length`` steps.

    ``ends`` says how it ends. Actions are ignored.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, length: int = 3, ends: str = "terminated", discrete: bool = True):
        self.length, self.ends = length, ends
        box = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2) if discrete else box
        self.seeds: list[int | None] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return np.array([0.0], np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.length
        terminated, truncated = (
            over and self.ends == "terminated",
            over and self.ends != "terminated",
        )
        return np.array([self.t], np.float32), 1.0, terminated, truncated, {}


class Flip(gym.Env):
    """Flips one of ``bits`` bits per step until they are as desired, at most ``bits`` steps.

    Andrychowicz et al. 2017, section 3.1: reward -1, and 0 where the goal is reached.
    """

    def __init__(self, bits: int = 7):
        self.bits = bits
        state = gym.spaces.Box(0.0, 1.0, (bits,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = gym.spaces.Dict(dict.fromkeys(names, state))
        self.action_space = gym.spaces.Discrete(bits)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.integers(0, 2, (2, self.bits)).astype(np.float32)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        self.state[action] = 1.0 - self.state[action]
        reward = float(self.compute_reward(self.state, self.goal, {}))
        is_success = self.compute_terminated(self.state, self.goal, {})
        is_over = not is_success and self.t >= self.bits
        return self.observe(), reward, is_success, is_over, {"is_success": is_success}

    def observe(self):
        return {
            "observation": self.state.copy(),
            "achieved_goal": self.state.copy(),
            "desired_goal": self.goal.copy(),
        }

    @staticmethod
    def compute_reward(achieved_goal, desired_goal, info):
        return -np.any(achieved_goal != desired_goal, axis=-1).astype(np.float32)

    @staticmethod
    def compute_terminated(achieved_goal, desired_goal, info):
        return bool(np.all(achieved_goal == desired_goal))


class Pixels(gym.Env):
    """Stacks of 4 frames of 6 x 6 random pixels, the newest last; episodes of 5 to 9 steps."""

    observation_space = gym.spaces.Box(0, 255, (4, 6, 6), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.stack = self.np_random.integers(0, 256, (4, 6, 6), np.uint8)
        self.left = int(self.np_random.integers(5, 10))
        return self.stack.copy(), {}

    def step(self, action):
        self.left -= 1
        frame = self.np_random.integers(0, 256, (1, 6, 6), np.uint8)
        self.stack = np.concatenate([self.stack[1:], frame])
        return self.stack.copy(), float(action), self.left == 0, False, {}
