"""Steady env steps/s of Stable-Baselines3 or SBX, the first quarter not counted.

    python benchmarks/peers.py {sbx,sb3} {SAC,TD3,DQN} ENV STEPS [SLEEP_SECONDS]

Needs the extra `peers`. SAC and TD3: one update per env step, batch 256, MLP 256-256, 1,000 steps
of warm-up. DQN: RL-Zoo's settings for CartPole-v1.
"""

import importlib
import json
import sys
import time
import warnings

import gymnasium as gym

RL_ZOO_CARTPOLE = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
CONTINUOUS = {
    "learning_starts": 1_000,
    "train_freq": 1,
    "gradient_steps": 1,
    "batch_size": 256,
    "policy_kwargs": {"net_arch": [256, 256]},
}


class SlowStep(gym.Wrapper):
    """Sleeps in every step, as a robot or a remote simulator would."""

    def __init__(self, env: gym.Env, seconds: float):
        super().__init__(env)
        self.seconds = seconds

    def step(self, action):
        if self.seconds:
            time.sleep(self.seconds)
        return self.env.step(action)


def main(library: str, algorithm: str, env_id: str, steps: str, sleep: str = "0") -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    warnings.filterwarnings("ignore")
    module = importlib.import_module({"sbx": "sbx", "sb3": "stable_baselines3"}[library])
    options = RL_ZOO_CARTPOLE if algorithm == "DQN" else CONTINUOUS
    uncounted = max(int(steps) // 4, 1_500)

    class Clock(BaseCallback):
        start: tuple[float, int] | None = None

        def _on_step(self) -> bool:
            if self.start is None and self.num_timesteps >= uncounted:
                self.start = (time.perf_counter(), self.num_timesteps)
            return True

    clock, env = Clock(), SlowStep(gym.make(env_id), float(sleep))
    model = getattr(module, algorithm)("MlpPolicy", env, seed=0, **options)
    model.learn(int(steps), callback=clock)
    assert clock.start is not None
    since, counted = clock.start
    rate = (model.num_timesteps - counted) / (time.perf_counter() - since)
    print(json.dumps({"peer": library, "env_steps_per_s": round(rate, 1)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
