"""``RunConfig`` and its parts: what a run is, as plain frozen dataclasses.

Every field has one line that says what it is, and every impossible value is refused at
construction with the field, the value and the remedy. The agent's own settings live beside the
agent (``jaxrl_async/agents``); ``RunConfig.agent`` is any frozen dataclass.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from jaxrl_async.checks import (
    at_least,
    finite,
    fraction,
    of_type,
    one_of,
    parts_fit,
    positive,
    require,
    whole,
)


@dataclass(frozen=True)
class ReplayConfig:
    """What is kept of the experience."""

    capacity: int = 1_000_000
    """Transitions kept; the oldest are overwritten."""
    n_step: int = 1
    """Rewards summed before bootstrapping."""
    priority_exponent: float = 0.0
    """Alpha of prioritized replay, the power of a TD error; 0: uniform."""
    importance_exponent: float = 0.4
    """Beta of its importance weights at the first update."""
    importance_exponent_end: float = 1.0
    """Beta at the last update of the budget, linear between."""
    importance_norm: Literal["batch", "buffer"] = "batch"
    """What the largest weight, which is made 1, is looked for in: one update's batch, or all."""
    path: str | None = None
    """Directory on whose disk the transitions lie, where memory is too small; None: in memory."""
    frame_stack: int | None = None
    """Frames in an observation of stacked uint8 pixels, each kept once; None: kept whole."""
    hindsight: Literal["future", "final", "episode"] | None = None
    """Where hindsight takes another goal from, in a goal-conditioned env; None: no hindsight."""
    hindsight_share: float = 0.8
    """Share of the items drawn that get another goal."""
    dataset: str | None = None
    """Recorded experience mixed in: path of an npz file, or "minari:" and an id; None: none."""
    dataset_share: float = 0.5
    """Share of each batch drawn from the dataset."""

    def __post_init__(self):
        whole(self, 1, "capacity", "n_step")
        at_least(self, 0, "priority_exponent")
        fraction(self, "importance_exponent", "importance_exponent_end")
        one_of(self, ("batch", "buffer"), "importance_norm")
        of_type(self, str | None, "use a path as a string, or None", "path", "dataset")
        fraction(self, "hindsight_share", "dataset_share")
        if self.frame_stack is not None:
            whole(self, 2, "frame_stack")
        if self.hindsight is not None:
            one_of(self, ("future", "final", "episode"), "hindsight")
            remedy = "use it with n_step = 1 and frame_stack = None"
            fits = self.n_step == 1 and self.frame_stack is None
            require(fits, "ReplayConfig.hindsight", self.hindsight, remedy)

    @property
    def keeps_steps(self) -> bool:
        """Whether single steps are kept, and windows of n made when they are drawn."""
        return self.frame_stack is not None or self.hindsight is not None


@dataclass(frozen=True)
class ActorConfig:
    """Who acts."""

    num_actors: int = 1
    """Actors, each with its own envs and seeds."""
    envs_per_actor: int = 1
    """Envs that one actor steps together, with one call of the policy."""
    chunk_steps: int = 1
    """Vector steps per message to the replay."""
    ladder: float = 0.0
    """Lane i of N explores with explore ** (1 + ladder i / (N - 1)); 7 is Ape-X's; 0: all alike."""
    random_steps: int = 1_000
    """Env steps of uniformly random actions at the start, shared out over the actors."""
    double_buffer: bool = False
    """Step one half of an actor's envs while actions for the other half are computed."""
    max_policy_lag: int | None = None
    """Updates; an actor whose policy is behind by more waits for a newer one. None: no bound."""
    device: str = "cpu"
    """JAX platform that actions are computed on; small policies act fastest beside the envs."""

    def __post_init__(self):
        whole(self, 1, "num_actors", "envs_per_actor", "chunk_steps")
        whole(self, 0, "random_steps")
        at_least(self, 0, "ladder")
        of_type(self, str, "use the name of a JAX platform such as 'cpu'", "device")
        of_type(self, bool, "use True or False", "double_buffer")
        require(
            self.envs_per_actor % self.groups == 0,
            "ActorConfig.envs_per_actor",
            self.envs_per_actor,
            "use an even number with double_buffer",
        )
        if self.max_policy_lag is not None:
            whole(self, 1, "max_policy_lag")

    @property
    def groups(self) -> int:
        """Groups of an actor's envs that are stepped in turn."""
        return 2 if self.double_buffer else 1


@dataclass(frozen=True)
class LearnerConfig:
    """How updates are made."""

    batch_size: int = 256
    """Transitions per update."""
    updates_per_env_step: float | None = 1.0
    """Update-to-data ratio, held by the rate limiter; None: free-running after the warm-up."""
    warmup_steps: int = 1_000
    """Env steps before the first update."""
    slack: float | None = None
    """How far actors and learner may drift apart, in updates; None: 2 (insert * ratio + K)."""
    updates_per_call: int = 1
    """Updates in one compiled call."""
    publish_period: int = 1
    """Updates between two hand-overs of parameters to the actors, rounded up to whole calls."""
    devices: int = 1
    """Devices that share each batch (data parallelism); divides batch_size."""

    def __post_init__(self):
        whole(self, 1, "batch_size", "updates_per_call", "publish_period", "devices")
        whole(self, 0, "warmup_steps")
        if self.updates_per_env_step is not None:
            positive(self, "updates_per_env_step")
        if self.slack is not None:
            positive(self, "slack")
        require(
            self.batch_size % self.devices == 0,
            "LearnerConfig.batch_size",
            self.batch_size,
            f"use a multiple of devices = {self.devices}",
        )


@dataclass(frozen=True)
class EvaluationConfig:
    """How the policy is scored."""

    period: int = 10_000
    """Env steps between evaluations; also at 0 and after the last update; 0: never."""
    episodes: int = 10
    """Episodes per evaluation, played greedily."""
    env: str | None = None
    """Id of the env to evaluate in; None: the training env."""
    max_episode_steps: int = 100_000
    """Steps after which an evaluation episode is cut, its return so far counting."""
    time_limit: float = 600.0
    """Seconds for one evaluation; then what has finished is reported."""

    def __post_init__(self):
        whole(self, 0, "period")
        whole(self, 1, "episodes", "max_episode_steps")
        positive(self, "time_limit")
        of_type(self, str | None, "use a Gymnasium id or None", "env")


@dataclass(frozen=True)
class CheckpointConfig:
    """What is saved so that a run can go on."""

    period: int = 50_000
    """Env steps between checkpoints; also at a stop and at the end; 0: only then."""
    keep: int = 2
    """Newest checkpoints kept."""

    def __post_init__(self):
        whole(self, 0, "period")
        whole(self, 1, "keep")


@dataclass(frozen=True)
class StopConfig:
    """What ends a run before its budget of env steps, whichever comes first."""

    updates: int | None = None
    """Updates made; None: no bound."""
    seconds: float | None = None
    """Seconds since the start; None: no bound."""
    score: float | None = None
    """Mean return of an evaluation that reaches it; None: no bound."""

    def __post_init__(self):
        if self.updates is not None:
            whole(self, 1, "updates")
        if self.seconds is not None:
            positive(self, "seconds")
        if self.score is not None:
            finite(self, "score")


Agent = TypeVar("Agent")


@dataclass(frozen=True)
class RunConfig(Generic[Agent]):
    """One run: env, agent, budget and the parts."""

    env: str
    """Gymnasium id; where an env object or factory was given, its name."""
    agent: Agent
    """The agent's own settings, a frozen dataclass such as SACConfig."""
    agent_name: str = "custom"
    """What the agent is called in titles and directories; a preset's name for those of AGENTS."""
    seed: int = 0
    """The run's only seed; everything random derives from it."""
    env_steps: int = 1_000_000
    """Budget: env steps over all actors."""
    lockstep: bool = False
    """One thread, actors and learner in turn, the same bits each time; for tests and papers."""
    directory: str | None = None
    """Where the run writes; None: a new directory under runs/."""
    record_period: int = 1_000
    """Env steps between two rows of training metrics."""
    env_options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of gymnasium.make."""
    replay: ReplayConfig = ReplayConfig()
    """What is kept of the experience."""
    actor: ActorConfig = ActorConfig()
    """Who acts."""
    learner: LearnerConfig = LearnerConfig()
    """How updates are made."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How the policy is scored."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What is saved so that the run can go on."""
    stop: StopConfig = StopConfig()
    """What ends the run early."""

    def __post_init__(self):
        of_type(self, str, "use a string", "env", "agent_name")
        of_type(self, str | None, "use a path as a string, or None", "directory")
        of_type(self, bool, "use True or False", "lockstep")
        of_type(self, Mapping, "use a dict of keywords", "env_options")
        for part in dataclasses.fields(self):
            if dataclasses.is_dataclass(part.default):
                kind = type(part.default)
                of_type(self, kind, f"use a {kind.__name__}", part.name)
        require(
            dataclasses.is_dataclass(self.agent) and not isinstance(self.agent, type),
            "RunConfig.agent",
            self.agent,
            "use an agent's config such as SACConfig()",
        )
        whole(self, 0, "seed")
        whole(self, 1, "env_steps", "record_period")
        parts_fit(self)
