"""Where every seed comes from: one ``np.random.SeedSequence`` tree per run.

The spawn key spells out whose stream it is, so streams are independent, do not depend on the order
in which parts start, and a restart gets a new one by its incarnation number.
"""

import enum

import numpy as np


class Role(enum.IntEnum):
    """The first number of a spawn key."""

    AGENT = 0  # initial parameters
    LEARNER = 1  # noise of the updates
    REPLAY = 2  # which transitions are drawn
    ACTOR = 3  # random actions; then actor
    ACTOR_NOISE = 4  # exploration noise; then actor
    ENV = 5  # resets of training envs; then actor, lane, incarnation, episode
    EVALUATION = 6  # resets of evaluation envs; then version, episode


def sequence(seed: int, role: Role, *path: int) -> np.random.SeedSequence:
    """The stream of one part of a run."""
    return np.random.SeedSequence(seed, spawn_key=(role, *path))


def integer(seed: int, role: Role, *path: int) -> int:
    """A seed below 2^31 for what takes one integer: an env's reset, a JAX key."""
    return int(sequence(seed, role, *path).generate_state(1)[0] >> 1)
