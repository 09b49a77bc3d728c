"""The table of agents, and the config that a name stands for."""

import dataclasses
import re

import pytest

from jaxrl_async.agents import AGENTS, agent_of, preset, run_config
from jaxrl_async.agents.dqn import DQN, DQNConfig
from jaxrl_async.agents.sac import SAC, SACConfig
from jaxrl_async.agents.td3 import TD3, TD3Config, ddpg
from jaxrl_async.checks import ConfigError
from jaxrl_async.config import RunConfig
from jaxrl_async.types import ArraySpec, EnvSpec


@pytest.mark.parametrize(("typed", "meant"), [("sca", "sac"), ("TD3", None), ("dqqn", "dqn")])
def test_an_unknown_name_is_refused_and_the_nearest_one_named(typed, meant):
    hint = f"did you mean {meant!r}" if meant else "choose of ddpg, dqn, sac, td3"

    with pytest.raises(ConfigError, match=re.escape(hint)) as refusal:
        preset(typed)

    assert repr(typed) in str(refusal.value)
    assert all(name in str(refusal.value) for name in AGENTS)


def test_each_name_gives_its_preset():
    assert {name: preset(name).agent for name in AGENTS} == {
        "ddpg": TD3,
        "dqn": DQN,
        "sac": SAC,
        "td3": TD3,
    }


@pytest.mark.parametrize("name", list(AGENTS))
def test_every_preset_and_every_tuned_task_makes_a_valid_run(name):
    for env in ["SomeEnv-v0", *AGENTS[name].tasks]:
        made = run_config(name, env)

        assert made.env == env and made.agent_name == name
        assert type(made.agent) is type(AGENTS[name].config)


def test_later_settings_win_over_earlier_ones():
    default = RunConfig(env="CartPole-v1", agent=DQNConfig())

    elsewhere = run_config("dqn", "SomeEnv-v0")
    tuned = run_config("dqn", "CartPole-v1")
    changed = run_config("dqn", "CartPole-v1", {"learner.batch_size": 32, "env_steps": 7_000})

    # batch size: the default, then the preset's, then the task's, then the caller's
    batch_sizes = [run.learner.batch_size for run in (default, elsewhere, tuned, changed)]
    assert batch_sizes == [256, 128, 64, 32]
    # updates per env step: the caller leaves the task's
    ratios = [run.learner.updates_per_env_step for run in (default, elsewhere, tuned, changed)]
    assert ratios == [1.0, 0.25, 0.5, 0.5]
    # warm-up: nobody changes the default
    assert changed.learner.warmup_steps == default.learner.warmup_steps
    assert [run.env_steps for run in (elsewhere, tuned, changed)] == [1_000_000, 50_000, 7_000]


def test_a_nested_change_of_the_agent_keeps_the_rest_of_its_settings():
    made = run_config("dqn", "CartPole-v1", {"agent": {"learning_rate": 0.5}})

    assert made.agent.learning_rate == 0.5
    assert made.agent.target_period == 128  # the task's
    assert made.agent.double == DQNConfig().double


def test_the_presets_themselves_are_never_changed():
    before = AGENTS["sac"].config

    run_config("sac", "Pendulum-v1", {"agent.tau": 0.5})

    assert AGENTS["sac"].config is before and before == SACConfig()


def test_settings_find_their_agent():
    found = [agent_of(settings) for settings in (SACConfig(), TD3Config(), ddpg(), DQNConfig())]

    assert found == [SAC, TD3, TD3, DQN]


def test_settings_of_an_unknown_type_are_refused_by_name():
    @dataclasses.dataclass(frozen=True)
    class Foreign:
        discount: float = 0.9

    with pytest.raises(ConfigError, match=r"no agent of AGENTS takes Foreign"):
        agent_of(Foreign())


@pytest.mark.parametrize("name", list(AGENTS))
def test_every_agent_takes_one_kind_of_action_space_and_refuses_the_other(name):
    refused = []
    for discrete in (False, True):
        try:
            spec = EnvSpec(ArraySpec((2,), "float32"), 2, discrete)
            AGENTS[name].agent(AGENTS[name].config, spec)
        except ConfigError as error:
            refused.append(str(error))

    (message,) = refused
    assert message.startswith("env's action space = ") and "use " in message
