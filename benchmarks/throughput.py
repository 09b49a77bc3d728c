"""A threaded run against the bare update, and against peers.

    python benchmarks/throughput.py bare
    python benchmarks/throughput.py peers --agents sac td3 dqn        # needs the extra `peers`

`bare`: SAC on HalfCheetah-v5 at one update per env step, without evaluation, for `seconds` after
the warm-up: updates finished per second, over those of the same compiled step on one resident batch
at the fastest K of 1, 8, 32, timed before and after each of `rounds` such runs in the same process;
the median of the ratios.

`peers`: env steps per second of whole runs, ours and SBX's (and SB3's with `--sb3`), each in a
process of its own, in turns; the same warm-up, networks, batch and updates per env step on both
sides. SAC and TD3 on HalfCheetah-v5 at one update per env step; DQN on CartPole-v1 with RL-Zoo's
settings. The peers step one env, as their settings have it; our actor steps `ENVS` of them with one
call of the policy. The value is the ratio of the medians.

Appends JSON lines to `benchmarks/results/throughput.jsonl`.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import tyro
from machine import RESULTS, context
from update import UPDATES_PER_CALL, make_learner, updates_per_second

from jaxrl_async.agents import run_config
from jaxrl_async.runtime.trainer import Trainer

RESULT = RESULTS / "throughput.jsonl"
WARMUP = 1_000
# RL-Zoo's settings, as peers.py gives them to the peers.
DQN = {
    "replay.n_step": 1,
    "agent.learning_rate": 2.3e-3,
    "agent.double": False,
}


# As peers.py gives them to the peers, whatever the task's own settings are.
CONTINUOUS = {
    "learner.batch_size": 256,
    "learner.updates_per_call": 32,
    "agent.hidden": (256, 256),
    "agent.learning_rate": 3e-4,
}


ENVS = {"sac": 4, "td3": 4, "dqn": 8}


class Meter:
    """Env steps and updates at each timing row: a recorder."""

    def __init__(self):
        self.rows: list[tuple[float, int, int]] = []
        self.trainer: Trainer | None = None

    def start(self, config: Mapping[str, Any]) -> None: ...

    def record(self, stream: str, env_steps: int, values: Mapping[str, float]) -> None:
        if stream == "timing" and self.trainer is not None:
            done = self.trainer.parts.learner.done
            self.rows.append((time.perf_counter(), env_steps, done))

    def close(self) -> None: ...

    def rates(self) -> tuple[float, float]:
        """Env steps/s and updates/s from two seconds after the first update on."""
        learning = [row for row in self.rows if row[2] > 0][2:]
        (start, steps_0, updates_0), (end, steps_1, updates_1) = learning[0], learning[-1]
        return (steps_1 - steps_0) / (end - start), (updates_1 - updates_0) / (end - start)


def run_ours(
    agent: str, env: str, seconds: float, changes: Mapping[str, Any], sleep: float = 0.0
) -> tuple[float, float]:
    """Env steps/s and updates/s of a threaded run that ends after about ``seconds``."""
    meter = Meter()
    with tempfile.TemporaryDirectory() as directory:
        config = run_config(
            agent,
            env,
            {
                "env_steps": 10_000_000,
                "directory": directory,
                "evaluation.period": 0,
                "learner.warmup_steps": WARMUP,
                "actor.random_steps": WARMUP,
                "stop.seconds": seconds,
                **changes,
            },
        )
        make_env = (lambda: SlowStep(gym.make(env), sleep)) if sleep else None
        meter.trainer = Trainer(config, recorder=meter, make_env=make_env)
        meter.trainer.run()
    return meter.rates()


class SlowStep(gym.Wrapper):
    """Sleeps in every step, as a robot or a remote simulator would."""

    def __init__(self, env: gym.Env, seconds: float):
        super().__init__(env)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return self.env.step(action)


class Bare:
    """The compiled step on one resident batch, at the fastest of its K."""

    def __init__(self, agent: str):
        """Finds that K: the largest median of three rounds in turns."""
        self._learners = {k: make_learner(agent, k) for k in UPDATES_PER_CALL}
        rates: dict[int, list[float]] = {k: [] for k in UPDATES_PER_CALL}
        for learner, call in self._learners.values():
            learner.compile()
            updates_per_second(learner, call, 0.5)
        for _ in range(3):
            for k, found in rates.items():
                found.append(self._measure(k, 2.0))
        self.updates_per_call = max(rates, key=lambda k: statistics.median(rates[k]))

    def _measure(self, k: int, seconds: float) -> float:
        return updates_per_second(*self._learners[k], seconds)

    def rate(self, seconds: float) -> float:
        """Updates per second."""
        return self._measure(self.updates_per_call, seconds)


def bare(
    agent: str = "sac",
    rounds: int = 3,
    seconds: float = 60.0,
    updates_per_call: int = 32,
    envs: int = ENVS["sac"],
) -> None:
    """P1: how much of the bare update a threaded run keeps."""
    resident, rates = Bare(agent), []
    changes = CONTINUOUS | {
        "learner.updates_per_call": updates_per_call,
        "actor.envs_per_actor": envs,
    }
    threaded = []
    for _ in range(rounds):
        rates.append(resident.rate(10.0))
        threaded.append(run_ours(agent, "HalfCheetah-v5", seconds + 15.0, changes)[1])
    rates.append(resident.rate(10.0))
    ratios = [2 * t / (a + b) for t, a, b in zip(threaded, rates, rates[1:], strict=False)]
    write(
        {
            "benchmark": "throughput/bare",
            "agent": agent,
            "value": round(statistics.median(ratios), 3),
            "unit": "updates/s of a threaded run over the bare update's",
            "ratios": [round(ratio, 3) for ratio in ratios],
            "threaded": [round(rate, 1) for rate in threaded],
            "bare": [round(rate, 1) for rate in rates],
            "bare_updates_per_call": resident.updates_per_call,
            "updates_per_call": updates_per_call,
            "envs": envs,
            "seconds": seconds,
        }
    )


def peers(
    agents: tuple[str, ...] = ("sac", "td3", "dqn"),
    rounds: int = 3,
    seconds: float = 30.0,
    envs: int = 0,
    sb3: bool = False,
) -> None:
    """P2: whole runs against SBX, and SB3, on the same work."""
    libraries = ("sbx", "sb3") if sb3 else ("sbx",)
    for agent in agents:
        env = "CartPole-v1" if agent == "dqn" else "HalfCheetah-v5"
        own = [sys.executable, __file__, "ours", "--agent", agent, "--env", env]
        own += ["--envs", str(envs or ENVS[agent])]
        commands = {"ours": [*own, "--seconds", str(seconds)]}
        steps = 20_000 if agent == "dqn" else 3_500
        script = str(pathlib.Path(__file__).with_name("peers.py"))
        for library in libraries:
            commands[library] = [sys.executable, script, library, agent.upper(), env, str(steps)]
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[name].append(json.loads(done.stdout.splitlines()[-1])["env_steps_per_s"])
        medians = {name: statistics.median(values) for name, values in found.items()}
        for library in libraries:
            write(
                {
                    "benchmark": f"throughput/{library}",
                    "agent": agent,
                    "env": env,
                    "value": round(medians["ours"] / medians[library], 2),
                    "unit": f"env steps/s over {library}'s",
                    "env_steps_per_s": found,
                    "commands": {name: shown(parts) for name, parts in commands.items()},
                }
            )


def ours(agent: str, env: str, envs: int, seconds: float = 30.0) -> None:
    """One run of ours; prints its env steps/s."""
    changes: dict[str, Any] = {"actor.envs_per_actor": envs}
    changes |= DQN if agent == "dqn" else CONTINUOUS
    rate, _ = run_ours(agent, env, seconds, changes)
    print(json.dumps({"env_steps_per_s": round(rate, 1)}))


def shown(command: list[str]) -> str:
    """A command as one would type it here."""
    return " ".join(["python", "benchmarks/" + pathlib.Path(command[1]).name, *command[2:]])


def write(line: dict[str, Any]) -> None:
    """Prints and keeps a result."""
    line |= context()
    print(json.dumps(line), flush=True)
    RESULTS.mkdir(exist_ok=True)
    with RESULT.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"bare": bare, "peers": peers, "ours": ours})
