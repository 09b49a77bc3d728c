"""One algorithm, one file, and the table of all of them.

An agent from outside needs no entry here: ``Trainer(RunConfig(env=..., agent=MyConfig()),
make_agent=MyAgent)``. ``examples/custom_agent.py`` shows it.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl_async import overrides
from jaxrl_async.agents.agent import Agent
from jaxrl_async.agents.dqn import DQN, DQNConfig
from jaxrl_async.agents.sac import SAC, SACConfig
from jaxrl_async.agents.td3 import TD3, TD3Config, ddpg
from jaxrl_async.checks import ConfigError
from jaxrl_async.config import RunConfig
from jaxrl_async.types import EnvSpec


class Preset(NamedTuple):
    """What a name stands for: values, no code."""

    agent: Callable[[Any, EnvSpec], Agent]  # (config, spec) -> agent
    config: Any  # the agent's settings, a frozen dataclass
    summary: str  # one line for `list`
    run: Mapping[str, Any] = {}  # dotted RunConfig fields that go with the agent
    tasks: Mapping[str, Mapping[str, Any]] = {}  # env id -> dotted RunConfig fields tuned for it


# RL-Zoo's settings for CartPole-v1 (128 updates every 256 env steps, a hard copy before each), but
# with 5-step returns, double Q-learning and a smaller learning rate, which solve it reliably.
CARTPOLE = {
    "env_steps": 50_000,
    "replay.capacity": 100_000,
    "replay.n_step": 5,
    "learner.batch_size": 64,
    "learner.updates_per_env_step": 0.5,
    "learner.updates_per_call": 128,
    "learner.publish_period": 128,
    "actor.random_steps": 1_000,
    "evaluation.period": 5_000,
    "agent.learning_rate": 5e-4,
    "agent.target_period": 128,
    "agent.exploration_end": 0.04,
    "agent.exploration_steps": 8_000,
    "agent.hidden": (256, 256),
}
# RL-Zoo's learning rate for Pendulum-v1.
PENDULUM = {"env_steps": 20_000, "evaluation.period": 2_000, "agent.learning_rate": 1e-3}
HALF_CHEETAH = {
    "env_steps": 100_000,
    "learner.warmup_steps": 10_000,
    "actor.random_steps": 10_000,
    "learner.updates_per_call": 8,
    "evaluation.period": 5_000,
}
# Spinning Up's learning rate for SAC.
HALF_CHEETAH_SAC = HALF_CHEETAH | {"agent.learning_rate": 1e-3}
# The settings of Fujimoto et al. 2018, Table 3.
HALF_CHEETAH_TD3 = HALF_CHEETAH | {
    "learner.batch_size": 100,
    "agent.learning_rate": 1e-3,
    "agent.hidden": (400, 300),
}
INVERTED_PENDULUM = {"env_steps": 30_000, "evaluation.period": 1_000}
CONTINUOUS = {
    "Pendulum-v1": PENDULUM,
    "InvertedPendulum-v5": INVERTED_PENDULUM,
    "HalfCheetah-v5": HALF_CHEETAH_SAC,
}

AGENTS: Mapping[str, Preset] = {
    "ddpg": Preset(
        TD3,
        ddpg(),
        "DDPG: deterministic policy, one critic (a preset of td3)",
        tasks={"Pendulum-v1": PENDULUM, "InvertedPendulum-v5": INVERTED_PENDULUM},
    ),
    "dqn": Preset(
        DQN,
        DQNConfig(),
        "DQN: discrete actions; double, dueling, softmax or epsilon-greedy",
        run={"learner.batch_size": 128, "learner.updates_per_env_step": 0.25},
        tasks={"CartPole-v1": CARTPOLE},
    ),
    "sac": Preset(
        SAC,
        SACConfig(),
        "SAC: stochastic policy, learned temperature",
        tasks=CONTINUOUS,
    ),
    "td3": Preset(
        TD3,
        TD3Config(),
        "TD3: deterministic policy, twin critics, delayed policy updates",
        tasks=CONTINUOUS | {"HalfCheetah-v5": HALF_CHEETAH_TD3},
    ),
}


def preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
      ConfigError: no such agent; the message names the nearest ones.
    """
    if name not in AGENTS:
        near = difflib.get_close_matches(name, AGENTS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"agent = {name!r}: no such agent; {hint}choose of {', '.join(AGENTS)}")
    return AGENTS[name]


def agent_of(settings: Any) -> Callable[[Any, EnvSpec], Agent]:
    """The agent that is configured by such settings.

    Raises:
      ConfigError: none in ``AGENTS``.
    """
    for chosen in AGENTS.values():
        if type(settings) is type(chosen.config):
            return chosen.agent
    raise ConfigError(
        f"agent = {settings!r}: no agent of AGENTS takes {type(settings).__name__};"
        " give Trainer make_agent=YourAgent"
    )


def run_config(name: str, env: str, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The config of a run: defaults, then the agent's, then the task's, then ``changes``.

    Args:
      name: a key of ``AGENTS``.
      env: a Gymnasium id, which also picks the tuned values.
      changes: fields of ``RunConfig``; parts as nested mappings or dotted names.
    """
    chosen = preset(name)
    tuned = chosen.tasks.get(env, {})
    start = RunConfig(env=env, agent=chosen.config, agent_name=name)
    return overrides.replace(start, chosen.run, tuned, changes or {})
