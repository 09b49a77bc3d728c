"""What users take away from a run."""

import io
import json
import zipfile

import gymnasium as gym
import numpy as np
import pytest
from small import Memory, small

from jaxrl_async import Policy, Trainer, evaluate_policy
from jaxrl_async.checks import ConfigError


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sac") / "run"
    Trainer(small("sac", "Pendulum-v1", directory=str(directory)), recorder=Memory()).run()
    return directory


@pytest.fixture(scope="module")
def dqn_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dqn") / "run"
    Trainer(small("dqn", "CartPole-v1", directory=str(directory)), recorder=Memory()).run()
    return directory


def test_actions_are_the_envs_and_batches_equal_single_observations(sac_run):
    policy = Policy.load(sac_run)
    observations = np.random.default_rng(0).normal(size=(5, 3))

    batch = policy.act(observations)

    assert (batch.shape, batch.dtype) == ((5, 1), np.float32)
    assert np.abs(batch).max() <= 2.0  # Pendulum's torque
    single = np.stack([policy.act(observation) for observation in observations])
    np.testing.assert_allclose(single, batch, rtol=1e-5, atol=1e-6)


def test_discrete_actions_drive_the_env(dqn_run):
    policy, env = Policy.load(dqn_run), gym.make("CartPole-v1")
    observation, _ = env.reset(seed=0)

    for _ in range(5):
        action = policy.act(observation)
        assert env.action_space.contains(action)
        observation, *_ = env.step(action)
    env.close()


def test_exploring_actions_repeat_only_with_a_seed(sac_run):
    policy = Policy.load(sac_run)
    observation = np.zeros(3)

    assert policy.act(observation, explore=1.0, seed=3) == policy.act(
        observation, explore=1.0, seed=3
    )
    assert policy.act(observation, explore=1.0) != policy.act(observation, explore=1.0)
    assert policy.act(observation) == policy.act(observation)


def test_predict_has_the_shape_that_sb3_expects(sac_run):
    policy = Policy.load(sac_run)
    observations = np.zeros((2, 3), np.float32)

    action, state = policy.predict(
        observations, state=None, episode_start=np.ones(2, bool), deterministic=True
    )

    np.testing.assert_array_equal(action, policy.act(observations))
    assert state is None
    noisy, _ = policy.predict(observations, deterministic=False)
    assert noisy[0] != noisy[1]


def test_save_and_load_keep_every_bit_and_the_card(sac_run, tmp_path):
    policy = Policy.load(sac_run)

    policy.save(tmp_path / "copy.npz")

    again = Policy.load(tmp_path / "copy.npz")
    observations = np.random.default_rng(1).normal(size=(4, 3))
    np.testing.assert_array_equal(again.act(observations), policy.act(observations))
    assert again.card == policy.card
    assert again.agent == policy.agent
    assert [path.name for path in tmp_path.iterdir()] == ["copy.npz"]


def test_the_file_holds_arrays_and_json_and_no_pickle(sac_run):
    with zipfile.ZipFile(sac_run / "policy_best.npz") as file:
        for name in file.namelist():
            array = np.load(io.BytesIO(file.read(name)), allow_pickle=False)
            assert array.dtype in (np.uint8, np.float32)
    with np.load(sac_run / "policy_best.npz") as file:
        meta = json.loads(file["meta"].tobytes())
    assert meta["agent_name"] == "sac"
    assert meta["env"] == "Pendulum-v1"


def test_a_file_of_another_shape_is_refused(sac_run, tmp_path):
    policy = Policy.load(sac_run)
    policy.params["params"]["Dense_0"]["kernel"] = np.zeros((2, 2), np.float32)
    policy.save(tmp_path / "wrong.npz")

    with pytest.raises(ConfigError, match=r"Dense_0.*\(2, 2\).*needs .*another agent or config"):
        Policy.load(tmp_path / "wrong.npz")


def test_no_policy_there_is_said(tmp_path):
    with pytest.raises(ConfigError, match="name a policy file or a run's directory"):
        Policy.load(tmp_path)


def test_an_observation_of_another_shape_is_refused(sac_run):
    with pytest.raises(ValueError, match=r"observation has shape \(2,\): use \(3,\)"):
        Policy.load(sac_run).act(np.zeros(2))


def test_evaluate_policy_scores_whole_episodes(sac_run):
    result = evaluate_policy(str(sac_run), episodes=20)

    assert len(result.returns) == 20
    np.testing.assert_array_equal(result.lengths, 200)
    assert len(set(result.returns)) == 20
    np.testing.assert_array_equal(
        evaluate_policy(str(sac_run), episodes=20).returns, result.returns
    )


def test_evaluate_policy_in_an_env_with_other_spaces_is_refused(sac_run):
    with pytest.raises(ConfigError, match="use an env with the same spaces"):
        evaluate_policy(str(sac_run), episodes=2, env="CartPole-v1")


@pytest.mark.parametrize("kind", ["empty", "text", "truncated", "pickled", "foreign"])
def test_what_is_no_policy_file_is_refused_by_name(sac_run, tmp_path, kind):
    path = tmp_path / "policy.npz"
    whole = (sac_run / "policy_best.npz").read_bytes()
    if kind == "pickled":
        np.savez(path, meta=np.array([{"format": 1}], object))
    elif kind == "foreign":
        np.savez(path, weights=np.zeros(3))
    else:
        content = {"empty": b"", "text": b"hello", "truncated": whole[: len(whole) // 2]}
        path.write_bytes(content[kind])

    with pytest.raises(ConfigError, match=r"policy\.npz: not a whole policy file"):
        Policy.load(path)
