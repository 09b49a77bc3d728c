"""The tree of seeds: no two parts of a run share a stream."""

import itertools

import numpy as np
import pytest

from jaxrl_async.seeding import Role, integer, sequence

PATHS = {
    Role.AGENT: [()],
    Role.LEARNER: [()],
    Role.REPLAY: [()],
    Role.ACTOR: [(actor,) for actor in range(16)],
    Role.ACTOR_NOISE: [(actor,) for actor in range(16)],
    # actor, lane, incarnation, episode
    Role.ENV: list(itertools.product(range(4), range(4), range(2), range(20))),
    # version, episode
    Role.EVALUATION: list(itertools.product(range(0, 200, 10), range(10))),
}


def first_word(seed, role, *path):
    return int(sequence(seed, role, *path).generate_state(1, np.uint64)[0])


def test_every_role_is_checked_here():
    assert set(PATHS) == set(Role)


def test_no_two_streams_of_three_seeds_are_alike():
    # 3 + 16 + 16 + 4 * 4 * 2 * 20 + 20 * 10 = 875 streams for each of 3 seeds;
    # two of 2625 random 64-bit numbers agree with odds of 2625^2 / 2^65 = 2e-13
    words = [
        first_word(seed, role, *path)
        for seed in range(3)
        for role, paths in PATHS.items()
        for path in paths
    ]

    assert len(words) == 2625
    assert len(set(words)) == len(words)


def test_every_role_has_streams_of_its_own_on_the_same_path():
    paths = [(), (0,), (0, 0), (0, 0, 0), (0, 0, 0, 0), (1,), (0, 1), (1, 0)]

    words = [first_word(0, role, *path) for role in Role for path in paths]

    assert len(set(words)) == len(Role) * len(paths)


def test_an_integer_is_reproducible_and_below_two_to_the_31():
    numbers = [
        integer(seed, role, *path)
        for seed in (0, 1, 2**31, 2**64)
        for role, paths in PATHS.items()
        for path in paths[:20]
    ]
    again = [
        integer(seed, role, *path)
        for seed in (0, 1, 2**31, 2**64)
        for role, paths in PATHS.items()
        for path in paths[:20]
    ]

    assert numbers == again
    assert all(type(number) is int and 0 <= number < 2**31 for number in numbers)
    assert max(numbers) >= 2**30  # the whole range is used


def test_drawing_from_one_stream_changes_no_other():
    before = integer(0, Role.ENV, 1, 0, 0, 0)

    sequence(0, Role.ENV, 0, 0, 0, 0).spawn(3)
    np.random.default_rng(sequence(0, Role.ENV, 1, 0, 0, 0)).random(100)

    assert integer(0, Role.ENV, 1, 0, 0, 0) == before


@pytest.mark.parametrize(("role", "number"), [(Role.AGENT, 0), (Role.ENV, 5)])
def test_a_stream_is_numpys_own_by_its_spawn_key(role, number):
    # the numbers are part of what makes an old run repeatable
    expected = np.random.SeedSequence(7, spawn_key=(number, 1, 2)).generate_state(4)

    found = sequence(7, role, 1, 2).generate_state(4)

    np.testing.assert_array_equal(found, expected)
    assert integer(7, role, 1, 2) == int(expected[0]) // 2
