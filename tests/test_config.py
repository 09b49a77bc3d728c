"""The settings of a run: what is refused, how they are changed, and that each is explained."""

import ast
import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

import jaxrl_async
from jaxrl_async import config as config_module
from jaxrl_async.agents import AGENTS, run_config
from jaxrl_async.agents.dqn import DQNConfig
from jaxrl_async.agents.sac import SACConfig
from jaxrl_async.agents.td3 import TD3Config
from jaxrl_async.checks import ConfigError
from jaxrl_async.config import (
    ActorConfig,
    EvaluationConfig,
    LearnerConfig,
    ReplayConfig,
    RunConfig,
)
from jaxrl_async.overrides import replace, to_json
from jaxrl_async.runtime.directory import RunDirectory

NAN, INF = math.nan, math.inf
STRANGE = ("", "8", True, False, (), (1,), {}, NAN, INF, -INF)
NOT_FROM_1 = (0, -1, 1.0, 2.5, None, *STRANGE)
NOT_FROM_0 = (-1, 0.0, 2.5, None, *STRANGE)
NOT_ABOVE_0 = (0, 0.0, -1, -1e-9, *STRANGE)
NEGATIVE = (-1, -1e-9, None, *STRANGE)
NOT_A_FRACTION = (-0.01, 1.01, 2, None, *STRANGE)
NOT_LAYERS = ((), (0,), (-1, 8), (8, 1.5), (8, True), (NAN,), ("8",), [8, 8], {8}, 8, "88", None)


def run(**changes):
    return RunConfig(env="Pendulum-v1", agent=SACConfig(), **changes)


IMPOSSIBLE = [
    (ReplayConfig, ("capacity", "n_step"), NOT_FROM_1),
    (ActorConfig, ("num_actors", "envs_per_actor", "chunk_steps"), NOT_FROM_1),
    (ActorConfig, ("random_steps",), NOT_FROM_0),
    (ActorConfig, ("ladder",), NEGATIVE),
    (ActorConfig, ("device",), (3, None)),
    (LearnerConfig, ("batch_size", "updates_per_call", "publish_period", "devices"), NOT_FROM_1),
    (LearnerConfig, ("warmup_steps",), NOT_FROM_0),
    (LearnerConfig, ("updates_per_env_step",), NOT_ABOVE_0),
    (LearnerConfig, ("slack",), NOT_ABOVE_0),
    (EvaluationConfig, ("period",), NOT_FROM_0),
    (EvaluationConfig, ("episodes", "max_episode_steps"), NOT_FROM_1),
    (EvaluationConfig, ("time_limit",), (None, *NOT_ABOVE_0)),
    (EvaluationConfig, ("env",), (3, ("CartPole-v1",))),
    (SACConfig, ("discount", "tau"), NOT_A_FRACTION),
    (SACConfig, ("learning_rate", "initial_temperature"), (None, *NOT_ABOVE_0)),
    (SACConfig, ("clip_norm",), NOT_ABOVE_0),
    (SACConfig, ("target_entropy",), ("auto", NAN, INF, True, (1.0,))),
    (SACConfig, ("num_critics",), NOT_FROM_1),
    (SACConfig, ("hidden",), NOT_LAYERS),
    (TD3Config, ("discount", "tau"), NOT_A_FRACTION),
    (TD3Config, ("learning_rate",), (None, *NOT_ABOVE_0)),
    (TD3Config, ("clip_norm",), NOT_ABOVE_0),
    (TD3Config, ("exploration_noise", "target_noise", "target_noise_clip"), NEGATIVE),
    (TD3Config, ("num_critics", "actor_period"), NOT_FROM_1),
    (TD3Config, ("hidden",), NOT_LAYERS),
    (DQNConfig, ("discount",), NOT_A_FRACTION),
    (DQNConfig, ("tau",), (0, 0.0, *NOT_A_FRACTION)),
    (DQNConfig, ("learning_rate",), (None, *NOT_ABOVE_0)),
    (DQNConfig, ("clip_norm",), NOT_ABOVE_0),
    (DQNConfig, ("target_period",), NOT_FROM_1),
    (DQNConfig, ("exploration_steps",), NOT_FROM_0),
    (DQNConfig, ("exploration", "exploration_end"), NOT_A_FRACTION),
    (DQNConfig, ("double", "dueling"), ("no", 0, 1, None)),
    (DQNConfig, ("loss",), ("", "mse", 3, None, ("huber",), ["huber"])),
    (DQNConfig, ("explorer",), ("", "greedy", 3, None, ("softmax",), ["softmax"])),
    (DQNConfig, ("hidden",), NOT_LAYERS),
    (run, ("seed",), NOT_FROM_0),
    (run, ("env_steps", "record_period"), NOT_FROM_1),
    (run, ("env_options",), (3, None, "render_mode")),
    (run, ("directory",), (3, True)),
    (run, ("agent_name",), (3, None)),
    (run, ("replay", "actor", "learner", "evaluation"), (3, None, "", {}, ReplayConfig)),
]


# ---- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "field", "values"),
    [
        pytest.param(make, field, values, id=f"{make.__name__}-{field}")
        for make, fields, values in IMPOSSIBLE
        for field in fields
    ],
)
def test_impossible_values_are_refused_with_field_value_and_remedy(make, field, values):
    owner = "RunConfig" if make is run else make.__name__

    messages = {repr(value): refusal(make, field, value) for value in values}

    starts = {value: f"{owner}.{field} = {value}: use " for value in messages}
    unlike = {v: text for v, text in messages.items() if not text.startswith(starts[v])}
    assert unlike == {}
    assert all("\n" not in text for text in messages.values())


def refusal(make, field, value):
    """The message, or what happened instead."""
    try:
        make(**{field: value})
    except ConfigError as error:
        return str(error)
    except Exception as error:
        return f"not a ConfigError but {error!r}"
    return "accepted"


@pytest.mark.parametrize("env", [3, None])
def test_an_env_that_is_no_id_is_refused(env):
    with pytest.raises(ConfigError, match=r"RunConfig\.env = .*: use "):
        RunConfig(env=env, agent=SACConfig())


@pytest.mark.parametrize("agent", ["sac", None, 3, {"tau": 0.1}, SACConfig])
def test_an_agent_that_is_no_config_is_refused(agent):
    with pytest.raises(ConfigError, match=r"RunConfig\.agent = .*: use an agent's config such as"):
        RunConfig(env="Pendulum-v1", agent=agent)


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_every_field_of_an_agent_that_is_a_number_refuses_nan(name):
    config = AGENTS[name].config
    numbers = [
        field.name
        for field in dataclasses.fields(config)
        if type(getattr(config, field.name)) in (int, float)
    ]

    for field in numbers:
        with pytest.raises(ConfigError, match=field):
            dataclasses.replace(config, **{field: NAN})


@pytest.mark.parametrize(
    ("parts", "field", "remedy"),
    [
        (
            {"learner": LearnerConfig(batch_size=9), "replay": ReplayConfig(capacity=8)},
            "learner.batch_size = 9",
            "use at most replay.capacity = 8",
        ),
        (
            {"learner": LearnerConfig(warmup_steps=1000), "env_steps": 1000},
            "learner.warmup_steps = 1000",
            "use fewer than env_steps = 1000",
        ),
        (
            {
                "learner": LearnerConfig(batch_size=1),
                "replay": ReplayConfig(capacity=11),
                "actor": ActorConfig(envs_per_actor=3, chunk_steps=4),
            },
            "replay.capacity = 11",
            "use at least",
        ),
        (  # an episode's end closes n = 8 windows in one step, in each of 2 envs
            {
                "learner": LearnerConfig(batch_size=1),
                "replay": ReplayConfig(capacity=15, n_step=8),
                "actor": ActorConfig(envs_per_actor=2),
            },
            "replay.capacity = 15",
            "use at least",
        ),
        (  # the first update would be due after 1 env step, the first window exists after 3
            {"learner": LearnerConfig(warmup_steps=0), "replay": ReplayConfig(n_step=3)},
            "learner.warmup_steps = 0",
            "use at least",
        ),
    ],
    ids=["batch", "warm-up", "chunk", "windows of one step", "nothing to sample"],
)
def test_parts_that_do_not_fit_together_are_refused(parts, field, remedy):
    with pytest.raises(ConfigError) as refused:
        run(**parts)

    assert str(refused.value).startswith(f"{field}: {remedy}")


def test_parts_that_just_fit_are_accepted():
    config = run(
        env_steps=1001,
        learner=LearnerConfig(batch_size=12, warmup_steps=1000),
        replay=ReplayConfig(capacity=12),
        actor=ActorConfig(envs_per_actor=3, chunk_steps=4),
    )

    assert config.replay.capacity == 12


@pytest.mark.parametrize(("batch_size", "devices"), [(255, 2), (256, 3), (1, 2)])
def test_a_batch_that_devices_cannot_share_is_refused(batch_size, devices):
    with pytest.raises(ConfigError) as refused:
        LearnerConfig(batch_size=batch_size, devices=devices)

    expected = f"LearnerConfig.batch_size = {batch_size}: use a multiple of devices = {devices}"
    assert str(refused.value) == expected


def test_the_temperature_of_a_softmax_may_exceed_1_and_an_epsilon_may_not():
    assert DQNConfig(explorer="softmax", exploration=5.0).exploration == 5.0

    with pytest.raises(ConfigError, match=r"DQNConfig\.exploration = 5\.0: use"):
        DQNConfig(explorer="epsilon_greedy", exploration=5.0)


def test_values_at_the_edge_of_what_is_possible_are_accepted():
    LearnerConfig(warmup_steps=0, slack=None, updates_per_env_step=1e-3)
    ActorConfig(random_steps=0, ladder=0)
    EvaluationConfig(period=0)
    SACConfig(discount=1.0, target_entropy=-3.0, clip_norm=None)
    TD3Config(discount=0, target_noise=0, exploration_noise=0)
    DQNConfig(exploration=0, exploration_end=0, exploration_steps=0, tau=1)


# ---- replace -------------------------------------------------------------------------------


def test_later_layers_win_whatever_way_they_name_a_field():
    layers = (
        {"learner.batch_size": 32, "env_steps": 5_000, "agent.tau": 0.5},
        {"learner": {"batch_size": 64, "devices": 2}, "seed": 1},
        {"learner.batch_size": 16, "env_steps": 6_000},
    )

    config = replace(run(), *layers)

    assert (config.learner.batch_size, config.learner.devices) == (16, 2)
    assert (config.env_steps, config.seed, config.agent.tau) == (6_000, 1, 0.5)
    assert config.replay == ReplayConfig()


def test_a_whole_part_in_a_later_layer_wins_over_its_fields_in_an_earlier_one():
    config = replace(run(), {"learner.batch_size": 32}, {"learner": LearnerConfig(batch_size=64)})

    assert config.learner == LearnerConfig(batch_size=64)


def test_fields_in_a_later_layer_change_the_whole_part_of_an_earlier_one():
    config = replace(
        run(), {"learner": LearnerConfig(batch_size=64, devices=2)}, {"learner.batch_size": 32}
    )

    assert config.learner == LearnerConfig(batch_size=32, devices=2)


def test_an_agent_of_another_type_is_a_value_like_any_other():
    config = replace(run(), {"agent": DQNConfig()}, {"agent.double": False})

    assert config.agent == DQNConfig(double=False)


def test_replace_leaves_the_original_and_the_layers_alone():
    config, layer = run(), {"learner": {"batch_size": 64}, "agent.hidden": [8, 8]}

    replace(config, layer)

    assert config == run()
    assert layer == {"learner": {"batch_size": 64}, "agent.hidden": [8, 8]}


@pytest.mark.parametrize(
    "changes",
    [
        {"learner": {"batch_size": 9, "devices": 3}},
        {"learner": {"devices": 3, "batch_size": 9}},
        {"learner.devices": 3, "learner.batch_size": 9},
        {"learner.devices": 3, "learner": {"batch_size": 9}},
    ],
)
def test_fields_changed_at_once_are_checked_only_together(changes):
    # 9 of 1 and 256 of 3 are no fit on their way; the default batch of 256 is no multiple of 3.
    config = replace(run(), changes)

    assert (config.learner.batch_size, config.learner.devices) == (9, 3)


def test_fields_changed_in_several_layers_are_checked_only_together():
    config = replace(run(), {"learner.devices": 3}, {"learner.batch_size": 9})

    assert (config.learner.batch_size, config.learner.devices) == (9, 3)


@pytest.mark.parametrize("order", [1, -1])
def test_parts_changed_at_once_are_checked_only_together(order):
    # A capacity of 100 does not fit the default batch, nor 500 env steps the default warm-up.
    changes = {
        "replay.capacity": 100,
        "learner.batch_size": 64,
        "env_steps": 500,
        "learner.warmup_steps": 200,
    }

    config = replace(run(), dict(list(changes.items())[::order]))

    assert (config.replay.capacity, config.learner.batch_size) == (100, 64)


def test_replace_checks_what_comes_out():
    with pytest.raises(ConfigError, match=r"LearnerConfig\.batch_size = 9: use a multiple"):
        replace(run(), {"learner": {"batch_size": 9, "devices": 2}})

    with pytest.raises(ConfigError, match=r"learner\.batch_size = 64: use at most"):
        replace(run(), {"learner.batch_size": 64, "replay.capacity": 63})


@pytest.mark.parametrize(
    ("changes", "start", "hint"),
    [
        ({"env_step": 3}, "env_step = 3: no such field; did you mean 'env_steps'? ", "RunConfig"),
        ({"lerner": {}}, "lerner = {}: no such field; did you mean 'learner'? ", "RunConfig"),
        ({"lerner.devices": 3}, "lerner.devices = 3: no such field; did you mean", "RunConfig"),
        (
            {"learner": {"batchsize": 3}},
            "learner.batchsize = 3: no such field; did you mean 'batch_size'? ",
            "learner has batch_size, ",
        ),
        (
            {"learner.batchsize": 3},
            "learner.batchsize = 3: no such field; did you mean 'batch_size'? ",
            "learner has batch_size, ",
        ),
        (
            {"agent.taw": 3},
            "agent.taw = 3: no such field; did you mean 'tau'? ",
            "agent has discount, learning_rate, ",
        ),
        ({"env_steps.x": 3}, "env_steps.x = 3: no such field; ", "RunConfig"),
        ({"learner.devices.x": 3}, "learner.devices.x = 3: no such field; ", "learner has"),
        ({"zzz": 3}, "zzz = 3: no such field; RunConfig has env, agent, ", "learner, evaluation"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_and_all_names(changes, start, hint):
    with pytest.raises(ConfigError) as refused:
        replace(run(), changes)

    assert str(refused.value).startswith(start)
    assert hint in str(refused.value)


# ---- JSON ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_json_and_back_gives_the_same_config(name):
    config = run_config(
        name,
        "CartPole-v1",
        {
            "seed": 7,
            "env_options": {"max_episode_steps": 9, "nested": {"a": [1, 2]}},
            "agent.hidden": (8, 4),
            "learner": {"slack": 700.5},
            "evaluation.env": "CartPole-v0",
            "directory": "runs/x",
        },
    )
    defaults = RunConfig(env="none", agent=AGENTS[name].config)

    text = json.dumps(to_json(config), allow_nan=False)
    back = replace(defaults, json.loads(text))

    assert back == config
    assert back.agent.hidden == (8, 4)
    assert hash(back.agent) == hash(config.agent)


def test_json_names_every_field_and_knows_only_json_values():
    values = to_json(run())

    assert list(values) == [field.name for field in dataclasses.fields(RunConfig)]
    assert values["agent"]["hidden"] == [256, 256]
    assert values["learner"]["slack"] is None
    assert json.loads(json.dumps(values)) == values


def test_a_directory_keeps_the_config_and_the_versions(tmp_path):
    config = run(seed=5, directory=str(tmp_path / "run"))

    RunDirectory(config)

    values = json.loads((tmp_path / "run" / "config.json").read_text())
    assert values.pop("versions")["numpy"] == np.__version__
    assert replace(run(), values) == config


def test_a_value_that_json_does_not_know_is_refused_and_nothing_written(tmp_path):
    config = run(env_options={"gravity": NAN}, directory=str(tmp_path / "run"))

    with pytest.raises(ConfigError, match="not JSON compliant"):
        RunDirectory(config)
    assert list(tmp_path.iterdir()) == []


# ---- every field is explained --------------------------------------------------------------


def config_classes():
    """name -> (file, class) of each dataclass of settings in the package, by its source."""
    package = pathlib.Path(jaxrl_async.__file__).parent
    return {
        node.name: (path, node)
        for path in (package / "config.py", *sorted((package / "agents").glob("*.py")))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config")
    }


CONFIGS = config_classes()


def test_the_source_holds_every_config_that_there_is():
    parts = [getattr(run(), field.name) for field in dataclasses.fields(RunConfig)]
    agents = [preset.config for preset in AGENTS.values()]
    used = {type(p).__name__ for p in (*parts, *agents) if dataclasses.is_dataclass(p)}

    assert used | {"RunConfig"} == set(CONFIGS)
    assert CONFIGS["RunConfig"][0] == pathlib.Path(config_module.__file__)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_field_has_one_line_below_it_that_says_what_it_is(name):
    _, node = CONFIGS[name]

    fields = [i for i, statement in enumerate(node.body) if isinstance(statement, ast.AnnAssign)]

    assert fields
    for i in fields:
        field = node.body[i].target.id
        below = node.body[i + 1] if i + 1 < len(node.body) else None
        assert isinstance(below, ast.Expr), f"{name}.{field} has no line below it"
        assert isinstance(below.value, ast.Constant), f"{name}.{field} has no line below it"
        text = below.value.value
        assert isinstance(text, str), f"{name}.{field} has no line below it"
        assert "\n" not in text, f"{name}.{field}: {text!r}"
        assert text.endswith("."), f"{name}.{field}: {text!r}"


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_configs_are_frozen_and_have_a_docstring(name):
    _, node = CONFIGS[name]

    assert ast.get_docstring(node)
    assert any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)
