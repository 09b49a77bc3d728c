"""An env of your own, trained by passing the function that makes it.

    python examples/custom_env.py

Shows what an env must do to be trained on: declare its spaces, tell termination from truncation,
and, if it has a notion of success, say so in `info["is_success"]`. It needs no registration. Actors
and evaluation each make their own env, so `train` is given the function, not an env.

The highest return is 100. `python benchmarks/examples.py custom_env` measures what 5,000 env steps
reach here, and how long they take.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import tyro

from jaxrl_async import RunResult, train


class Cart(gym.Env):
    """A cart on a track of length 4 that is to stand still in the middle.

    Leaving the track terminates the episode: there is no future to be valued. A time limit would
    only truncate it, and values are bootstrapped from the last observation.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)  # position, velocity
    action_space = gym.spaces.Box(-3.0, 3.0, (1,), np.float32)  # force; agents act in [-1, 1]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Puts the cart somewhere, at rest."""
        super().reset(seed=seed)  # seeds self.np_random: draw from nothing else
        self.position = self.np_random.uniform(-1.5, 1.5)
        self.velocity = 0.0
        return self.observe(), {}

    def step(self, action: np.ndarray):
        """Pushes the cart for a twentieth of a second."""
        self.velocity += 0.05 * float(action[0])
        self.position += 0.05 * self.velocity
        reward = max(0.0, 1.0 - abs(self.position))
        terminated = abs(self.position) > 2.0
        return self.observe(), reward, terminated, False, {"is_success": self.is_at_rest()}

    def observe(self) -> np.ndarray:
        """What the agent sees, as declared: float32 of shape (2,)."""
        return np.array([self.position, self.velocity], np.float32)

    def is_at_rest(self) -> bool:
        """What success is: an episode counts by its last step."""
        return abs(self.position) < 0.1 and abs(self.velocity) < 0.1


def cart() -> gym.Env:
    """One cart; its name becomes the run's name for the env."""
    return gym.wrappers.TimeLimit(Cart(), max_episode_steps=100)


def main(env_steps: int = 5_000, directory: str | None = None) -> RunResult:
    """Trains SAC on the cart.

    Args:
      env_steps: budget of the training.
      directory: where the run writes; None: a new directory under runs/.

    Returns:
      The run's result.
    """
    result = train(
        "sac",
        cart,
        env_steps=env_steps,
        directory=directory,
        options={"hidden": (64, 64), "learning_rate": 1e-3},
        learner={"batch_size": 128, "warmup_steps": 200},
        actor={"random_steps": 200},
        evaluation={"period": 1_000},
    )

    print(result.summary)
    print(f"success rate {result.history[-1]['evaluation/success_mean']:.2f}")
    return result


if __name__ == "__main__":
    tyro.cli(main)
