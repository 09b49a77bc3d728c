"""From what a user calls an env to a factory."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from small import Counting

from jaxrl_async.checks import ConfigError
from jaxrl_async.envs import make


def test_an_id_makes_a_new_env_each_time():
    made = make.factory("CartPole-v1")

    first, second = made(), made()

    assert first is not second
    assert first.spec.id == second.spec.id == "CartPole-v1"


def test_options_go_to_gymnasium_make():
    env = make.factory("Pendulum-v1", {"max_episode_steps": 7, "g": 1.5})()

    assert env.spec.max_episode_steps == 7
    assert env.unwrapped.g == 1.5


def test_a_function_or_a_class_is_its_own_factory():
    def make_env():
        return Counting(5)

    assert make.factory(make_env) is make_env
    assert make.factory(Counting) is Counting
    assert make.factory(Counting, {}) is Counting


def test_an_env_object_is_made_again_with_its_own_settings_and_wrappers():
    env = gym.make("Pendulum-v1", max_episode_steps=7, g=1.5)
    env = gym.wrappers.RescaleAction(env, np.float32(-0.5), np.float32(0.5))

    again = make.factory(env)()

    assert again is not env
    assert again.unwrapped is not env.unwrapped
    assert (again.spec.max_episode_steps, again.unwrapped.g) == (7, 1.5)
    assert again.action_space == env.action_space
    assert again.action_space.high[0] == 0.5


def test_an_env_object_without_a_spec_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"env = Counting object without a spec: .*pass a funct"):
        make.factory(Counting())


def test_an_env_object_whose_wrapper_cannot_be_made_again_is_refused_with_the_remedy():
    class Plain(gym.Wrapper):
        """Records no arguments, so that Gymnasium cannot make it again."""

    with pytest.raises(ConfigError, match=r"env = .*Plain.*pass a function that makes one"):
        make.factory(Plain(gym.make("CartPole-v1")))


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("Cartpol-v1", "CartPole-v1"),
        ("CartPole-v9", "CartPole-v1"),
        ("cartpole", "CartPole-v1"),
        ("Pendulum_v1", "Pendulum-v1"),
        ("not_a_package_at_all:Pendulum-v1", "Pendulum-v1"),
    ],
)
def test_a_wrong_id_names_the_nearest(wrong, near):
    with pytest.raises(ConfigError, match=rf"env = '{wrong}': no such env; did you mean '{near}'"):
        make.factory(wrong)


@pytest.mark.parametrize("wrong", ["", ":", "?? no env ??", "json:"])
def test_an_id_like_no_other_says_what_to_do(wrong):
    with pytest.raises(ConfigError, match="no such env; import the package that registers it"):
        make.factory(wrong)


def test_a_wrong_id_is_refused_before_anything_is_made():
    with pytest.raises(ConfigError) as caught:
        make.factory("Cartpol-v1")

    assert isinstance(caught.value.__cause__, gym.error.Error)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module that registers an env when it is imported."""
    name = "registers_counting_envs"
    (tmp_path / f"{name}.py").write_text(
        "import gymnasium\n"
        "from small import Counting\n"
        "gymnasium.register('FromPackage-v0', entry_point=Counting)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)
    gym.registry.pop("FromPackage-v0", None)


def test_a_module_before_the_id_is_imported_first(package):
    assert "FromPackage-v0" not in gym.registry

    env = make.factory(f"{package}:FromPackage-v0", {"length": 2})()

    assert isinstance(env.unwrapped, Counting)
    assert env.unwrapped.length == 2


def test_a_wrong_id_in_a_module_names_the_nearest_that_it_registers(package):
    with pytest.raises(ConfigError, match="did you mean 'FromPackage-v0'"):
        make.factory(f"{package}:FromPakage-v0")


@pytest.mark.parametrize("env", [Counting, Counting()], ids=["factory", "object"])
def test_options_go_with_an_id_only(env):
    message = r"env_options = \{'length': 2\}: go with an env id; put them in the factory"

    with pytest.raises(ConfigError, match=message):
        make.factory(env, {"length": 2})


@pytest.mark.parametrize("env", [None, 3, ["CartPole-v1"]])
def test_anything_else_is_refused(env):
    with pytest.raises(ConfigError, match="use a Gymnasium id, a function that makes an env, or"):
        make.factory(env)


def test_what_a_run_calls_its_env():
    def my_env():
        return Counting()

    assert make.name("ALE/Pong-v5") == "ALE/Pong-v5"
    assert make.name(my_env) == "my_env"
    assert make.name(Counting) == "Counting"
    assert make.name(Counting()) == "Counting"
    assert make.name(gym.make("CartPole-v1")) == "CartPole-v1"


def test_options_that_the_env_does_not_take_are_refused_when_it_is_made():
    make_env = make.factory("CartPole-v1", {"gravity_of_the_situation": 3})

    with pytest.raises(ConfigError, match=r"env_options = .*use the options that it takes"):
        make_env()
