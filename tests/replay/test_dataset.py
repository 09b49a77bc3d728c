"""Recorded experience: the windows of a recording, files by two sets of names, and Minari."""

import pickle
import re

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_async.checks import ConfigError
from jaxrl_async.envs.spaces import describe
from jaxrl_async.replay import dataset
from jaxrl_async.replay.nstep import NStepAccumulator, windows_of
from jaxrl_async.types import ArraySpec, EnvSpec, Layout, leaves, map_leaves

SPEC = EnvSpec(ArraySpec((2,), "float32"), action_size=3, discrete=True)
NAMED = EnvSpec((("goal", SPEC.observation), ("place", SPEC.observation)), 3, True)
OURS = ("observations", "actions", "rewards", "terminations", "truncations", "next_observations")
D4RL = {"terminations": "terminals", "truncations": "timeouts"}


def recording(steps=6, **changes):
    """Observation t; reward t + 1; terminated at 1, truncated at 3; None leaves an array out."""
    t = np.arange(steps)
    arrays = {
        "observations": np.stack([t, -t], axis=1) * 1.0,
        "actions": t % 3,
        "rewards": t + 1.0,
        "terminations": t == 1,
        "truncations": t == 3,
        "next_observations": np.stack([t + 1, -t - 1], axis=1) * 1.0,
        **changes,
    }
    return {name: array for name, array in arrays.items() if array is not None}


def load(name, n_step=1, spec=SPEC, from_env=lambda action: action.astype(np.int32), seed=0):
    return dataset.load(
        str(name),
        spec,
        Layout(spec),
        from_env,
        n_step=n_step,
        discount=0.5,
        seed=np.random.SeedSequence(seed),
    )


def loaded(path, n_step=1, **arrays):
    np.savez(path / "recorded.npz", **arrays)
    return load(path / "recorded.npz", n_step).contents()


def refusal(name, **options):
    with pytest.raises(ConfigError) as caught:
        load(name, **options)
    message = str(caught.value)
    assert message.startswith(f"replay.dataset = {str(name)!r}: ")
    assert "\n" not in message
    return message


# ---- windows -------------------------------------------------------------------------------

steps = st.tuples(
    st.integers(-100, 100),
    st.sampled_from([False] * 4 + [True]),
    st.sampled_from([False] * 4 + [True]),
)


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(
    script=st.lists(steps, min_size=1, max_size=40),
    n=st.integers(1, 10),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
)
def test_the_windows_of_a_recording_are_those_of_the_accumulator(script, n, gamma):
    accumulator, parts = NStepAccumulator(1, n, gamma), []
    for t, (reward, terminated, truncated) in enumerate(script):
        parts.append(
            accumulator.add(
                np.array([t]),
                np.array([0]),
                np.array([float(reward)]),
                np.array([terminated]),
                np.array([truncated]),
                np.array([t + 1]),
            )
        )
    windows = map_leaves(lambda *found: np.concatenate(found), *parts, accumulator.flush())
    expected = windows.transitions

    columns = (np.array(column) for column in zip(*script, strict=True))
    reward, discount, last = windows_of(*columns, n, gamma)

    np.testing.assert_array_equal(expected.observation, np.arange(len(script)))  # by their starts
    np.testing.assert_array_equal(last + 1, expected.next_observation)
    # gamma^k and a product of k gammas: float64, then rounded to 2^-24
    np.testing.assert_allclose(reward, expected.reward, rtol=1.2e-7, atol=1e-11)
    np.testing.assert_allclose(discount, expected.discount, rtol=1.2e-7, atol=0)
    assert reward.dtype == discount.dtype == np.float32


# ---- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [{}, D4RL], ids=["ours", "D4RL's"])
@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32])
def test_a_file_becomes_its_windows_by_either_set_of_names(tmp_path, names, kind):
    arrays = {names.get(name, name): array for name, array in recording().items()}
    for name in ("terminations", "truncations"):
        arrays[names.get(name, name)] = arrays[names.get(name, name)].astype(kind)

    contents = loaded(tmp_path, n_step=3, **arrays)

    # gamma .5. 0: 1 + 2/2 and terminated; 1: 2; 2: 3 + 4/2 and truncated, .25; 3: 4, .5;
    # 4: 5 + 6/2 to the end of the file, .25; 5: 6, .5
    np.testing.assert_array_equal(contents.reward, [2, 2, 5, 4, 8, 6])
    np.testing.assert_array_equal(contents.discount, [0, 0, 0.25, 0.5, 0.25, 0.5])
    np.testing.assert_array_equal(contents.observation[:, 0], [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(contents.next_observation[:, 0], [2, 2, 4, 4, 6, 6])
    np.testing.assert_array_equal(contents.next_observation[:, 1], [-2, -2, -4, -4, -6, -6])
    np.testing.assert_array_equal(contents.action, [0, 1, 2, 0, 1, 2])
    assert [leaf.dtype.name for leaf in leaves(contents)] == [
        "float32", "int32", "float32", "float32", "float32",
    ]  # fmt: skip


def test_actions_go_through_the_inverse_of_the_env_s_bounds(tmp_path):
    # Box from 0 to 4: 0, 1 and 4 are -1, -.5 and 1
    box = gym.spaces.Box(0.0, 4.0, (1,), np.float32)
    spec, bounds = describe(gym.spaces.Box(-9.0, 9.0, (2,), np.float32), box)
    np.savez(tmp_path / "a.npz", **recording(3, actions=np.array([[0.0], [1.0], [4.0]])))

    replay = load(tmp_path / "a.npz", spec=spec, from_env=bounds.from_env)

    np.testing.assert_array_equal(replay.contents().action, [[-1.0], [-0.5], [1.0]])


def test_every_step_of_a_file_is_drawn_as_the_seed_says(tmp_path):
    np.savez(tmp_path / "a.npz", **recording())

    one, again, other = (load(tmp_path / "a.npz", seed=seed) for seed in (1, 1, 2))
    ids = one.sample(20, 50).ids

    assert set(ids.ravel().tolist()) == set(range(6))
    assert (len(one), one.capacity) == (6, 6)
    np.testing.assert_array_equal(again.sample(20, 50).ids, ids)
    assert np.any(other.sample(20, 50).ids != ids)


@pytest.mark.parametrize("missing", OURS)
def test_a_file_without_one_of_the_arrays_is_refused(tmp_path, missing):
    np.savez(tmp_path / "a.npz", **recording(**{missing: None}))

    message = refusal(tmp_path / "a.npz")

    also = f" or {D4RL[missing]}" if missing in D4RL else ""
    assert f"has no array {missing}{also}; save one" in message


@pytest.mark.parametrize("name", OURS)
def test_arrays_of_different_lengths_are_refused(tmp_path, name):
    np.savez(tmp_path / "a.npz", **recording(**{name: recording(5)[name]}))

    message = refusal(tmp_path / "a.npz")

    key = next(key for key, names in dataset.NAMES.items() if name in names)
    assert f"'{key}': 5" in message and message.count(": 6") == 5
    assert "use as many of each" in message


def test_an_empty_recording_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **recording(0))

    assert "use as many of each" in refusal(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": np.zeros((6, 3))}, r"float32\[6, 3\] where .* float32\[6, 2\]: make"),
        ({"next_observations": np.zeros((6, 1))}, r"float32\[6, 1\] where .* float32\[6, 2\]"),
        ({"observations": np.zeros((6, 2), complex)}, r"complex128\[6, 2\] where"),
        ({"actions": np.zeros((6, 1), int)}, r"int32\[6, 1\] where .* int32\[6\]"),
    ],
)
def test_arrays_of_another_env_are_refused(tmp_path, changes, message):
    np.savez(tmp_path / "a.npz", **recording(**changes))

    assert re.search(message, refusal(tmp_path / "a.npz"))


@pytest.mark.parametrize("name", ["rewards", "terminations", "truncations"])
def test_columns_where_rows_of_numbers_belong_are_refused(tmp_path, name):
    np.savez(tmp_path / "a.npz", **recording(**{name: recording()[name][:, None]}))

    refusal(tmp_path / "a.npz", n_step=3)


@pytest.mark.parametrize("name", ["observations", "rewards", "next_observations"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_first_step(tmp_path, name, value):
    array = recording()[name]
    array[[2, 4]] = value
    np.savez(tmp_path / "a.npz", **recording(**{name: array}))

    message = refusal(tmp_path / "a.npz")

    assert f"{name} are not finite at 2 steps, first at step 2; mend" in message


@pytest.mark.parametrize("action", [-1, 3])
def test_a_discrete_action_that_the_env_lacks_is_refused(tmp_path, action):
    np.savez(tmp_path / "a.npz", **recording(actions=np.array([0, 1, 2, action, 0, 1])))

    message = refusal(tmp_path / "a.npz")

    assert "actions are outside the env's action space at 1 steps, first at step 3;" in message


@pytest.mark.parametrize(("action", "is_taken"), [(4.0001, True), (4.01, False), (np.nan, False)])
def test_a_continuous_action_beyond_its_bounds_by_more_than_rounding_is_refused(
    tmp_path, action, is_taken
):
    box = gym.spaces.Box(0.0, 4.0, (1,), np.float32)
    spec, bounds = describe(gym.spaces.Box(-9.0, 9.0, (2,), np.float32), box)
    np.savez(tmp_path / "a.npz", **recording(3, actions=np.array([[0.0], [action], [4.0]])))

    if is_taken:
        assert len(load(tmp_path / "a.npz", spec=spec, from_env=bounds.from_env)) == 3
    else:
        message = refusal(tmp_path / "a.npz", spec=spec, from_env=bounds.from_env)
        assert "first at step 1" in message


@pytest.mark.parametrize("name", OURS)
def test_a_pickled_array_is_refused_and_not_run(tmp_path, name):
    array = recording()[name].astype(object)
    np.savez(tmp_path / "a.npz", **recording(**{name: array}))

    refusal(tmp_path / "a.npz")


@pytest.mark.parametrize("kind", ["npy", "pickle", "text", "empty", "half"])
def test_a_file_that_is_no_npz_is_refused(tmp_path, kind):
    path = tmp_path / "a.npz"
    np.savez(path, **recording())
    if kind == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        half = path.read_bytes()[:500]
        content = {"pickle": pickle.dumps([1]), "text": b"hello", "empty": b"", "half": half}
        path.write_bytes(content[kind])

    refusal(path)


@pytest.mark.parametrize("name", ["nowhere.npz", "."])
def test_a_path_without_a_file_is_refused(tmp_path, name):
    assert "there is no such file; use the path of an npz" in refusal(tmp_path / name)


def test_one_array_of_observations_for_an_env_with_several_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", **recording())

    refusal(tmp_path / "a.npz", spec=NAMED)


# ---- Minari --------------------------------------------------------------------------------


ABOUT = {
    "algorithm_name": "random",
    "author": "tests",
    "author_email": "tests@localhost",
    "code_permalink": "https://localhost",
    "description": "of a test",
}


@pytest.fixture
def minari(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return pytest.importorskip("minari")


def record(minari, name, env_id, lengths, **options):
    """Steps of random actions, the last episode cut when its length is reached."""
    collector, seen = minari.DataCollector(gym.make(env_id, **options)), []
    collector.action_space.seed(0)
    for episode, length in enumerate(lengths):
        observation, _ = collector.reset(seed=episode)
        for _ in range(length):
            action = collector.action_space.sample()
            after, reward, terminated, truncated, _ = collector.step(action)
            seen.append((observation, action, reward, terminated, truncated, after))
            observation = after
            if terminated or truncated:
                break
    collector.create_dataset(name, eval_env=env_id, **ABOUT)
    spec, bounds = describe(collector.observation_space, collector.action_space)
    collector.close()
    return seen, spec, bounds


cleans_up = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


@cleans_up
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_minari_dataset_gives_the_transitions_that_were_recorded(minari, env_id):
    # CartPole falls within 40 steps, Pendulum is truncated at 15; both are cut at 4 at the end.
    seen, spec, bounds = record(
        minari, "test/small-v0", env_id, [60, 60, 60, 4], max_episode_steps=15
    )
    observation, action, reward, terminated, truncated, after = (
        np.array(column) for column in zip(*seen, strict=True)
    )

    replay = load("minari:test/small-v0", spec=spec, from_env=bounds.from_env)
    contents = replay.contents()

    assert truncated.any() and not (terminated | truncated)[-4:].any()
    np.testing.assert_array_equal(contents.observation, observation)
    np.testing.assert_array_equal(contents.next_observation, after)
    np.testing.assert_array_equal(contents.reward, reward.astype(np.float32))
    np.testing.assert_array_equal(contents.discount, np.where(terminated, 0.0, 0.5))
    np.testing.assert_allclose(bounds.to_env(contents.action), action, rtol=1e-6, atol=1e-6)
    assert contents.observation.dtype == np.float32


def test_windows_do_not_reach_past_an_episode_that_says_of_no_step_that_it_was_the_last(minari):
    # Two episodes of 3 steps of reward 1, neither terminated nor truncated; n = 2: 1 + 1/2, 1.5, 1
    from minari.data_collector import EpisodeBuffer

    place = np.arange(8, dtype=np.float32).reshape(2, 4, 1).repeat(4, axis=-1)
    going_on = [False] * 3
    buffers = [
        EpisodeBuffer(None, None, None, each, np.array([0, 1, 0]), [1.0] * 3, going_on, going_on)
        for each in place
    ]
    env = gym.make("CartPole-v1")
    minari.create_dataset_from_buffers("test/cut-v0", buffers, env, env, **ABOUT)
    spec, bounds = describe(env.observation_space, env.action_space)

    contents = load("minari:test/cut-v0", 2, spec, bounds.from_env).contents()

    np.testing.assert_array_equal(contents.reward, [1.5, 1.5, 1] * 2)
    np.testing.assert_array_equal(contents.discount, [0.25, 0.25, 0.5] * 2)
    np.testing.assert_array_equal(contents.observation[:, 0], [0, 1, 2, 4, 5, 6])
    np.testing.assert_array_equal(contents.next_observation[:, 0], [2, 3, 3, 6, 7, 7])


@cleans_up
def test_a_minari_dataset_of_dict_observations_is_refused(minari):
    name, entry = "JaxrlAsyncFlip-v0", "small:Flip"
    gym.register(name, entry)
    try:
        _, spec, bounds = record(minari, "test/dict-v0", name, [5, 5])
    finally:
        del gym.registry[name]

    refusal("minari:test/dict-v0", spec=spec, from_env=bounds.from_env)


def test_a_minari_dataset_that_does_not_exist_is_refused(minari):
    message = refusal("minari:test/nothing-v0")

    assert "no such local dataset" in message
    assert "`minari download test/nothing-v0`" in message
