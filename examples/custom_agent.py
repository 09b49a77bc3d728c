"""An algorithm from outside the package, in one file: soft Q-learning on CartPole-v1.

    python examples/custom_agent.py

Shows what an agent consists of: a frozen config, a state of arrays and nothing else, pure methods.
It is registered nowhere: `Trainer` and `Policy.load` are given the class. It is DQN with the soft
maximum V(s) = temperature * log sum_a exp(Q(s, a) / temperature) in its target [1], and with actors
that draw from softmax(Q / temperature) where those of DQN act at random now and then. The highest
return is 500; `python benchmarks/examples.py custom_agent` measures what 50,000 env steps reach.

[1] Haarnoja et al. 2017, https://arxiv.org/abs/1702.08165, here for discrete actions
"""

import dataclasses
import functools
from typing import final

import flax.struct
import jax
import jax.numpy as jnp
import optax
import tyro

from jaxrl_async import Policy, RunConfig, Trainer
from jaxrl_async.agents.agent import Trainable, descend, trainable
from jaxrl_async.config import LearnerConfig
from jaxrl_async.nets.heads import QValues
from jaxrl_async.nets.network import Network
from jaxrl_async.ops import td
from jaxrl_async.ops.distributions import softmax_policy
from jaxrl_async.types import Batch, EnvSpec, Key, Params, UpdateInfo


@dataclasses.dataclass(frozen=True)
class SoftQConfig:
    """What can be set."""

    discount: float = 0.99  # every agent's config has it
    learning_rate: float = 2.3e-3
    temperature: float = 1.0
    target_period: int = 128  # updates between two copies to the target network
    hidden: tuple[int, ...] = (256, 256)


@flax.struct.dataclass
class SoftQState:
    """What is learned."""

    step: jax.Array  # [] int32, updates done; every agent's state has it
    q: Trainable
    target_q: Params


@final
@dataclasses.dataclass(frozen=True)
class SoftQ:
    """Functions of their arguments, the config and the env's spec; it holds no array."""

    config: SoftQConfig
    spec: EnvSpec

    @functools.cached_property
    def q(self) -> Network[jax.Array]:  # parameters -> [B, A]
        return Network(QValues(self.spec.action_size, self.config.hidden))

    @functools.cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return optax.adam(self.config.learning_rate)

    def init(self, key: Key) -> SoftQState:
        q = trainable(self.q.init(key, self.spec.zeros(batch=1)), self.optimizer)
        return SoftQState(jnp.zeros((), jnp.int32), q, jax.tree.map(jnp.copy, q.params))

    def actor_params(self, state: SoftQState) -> Params:
        return state.q.params

    def explore(self, env_steps: int) -> float:
        return self.config.temperature

    def initial_carry(self, batch: int) -> tuple[()]:
        return ()

    def act(self, params: Params, carry: tuple[()], observation, key: Key, explore: jax.Array):
        return softmax_policy(key, self.q(params, observation), explore), carry

    def update(self, state: SoftQState, batch: Batch, key: Key) -> tuple[SoftQState, UpdateInfo]:
        q, loss, td_error = descend(lambda p: self.q_loss(p, state, batch), state.q, self.optimizer)
        step, period = state.step + 1, self.config.target_period
        target_q = optax.periodic_update(q.params, state.target_q, step, period)
        return SoftQState(step, q, target_q), UpdateInfo({"q_loss": loss}, td_error)

    def q_loss(self, params: Params, state: SoftQState, batch: Batch):
        """[1] Theorem 2: r + discount * V(s'), with V of its Theorem 1."""
        t, temperature = batch.transition, self.config.temperature
        next_q = self.q(state.target_q, t.next_observation)  # [B, A]
        next_value = temperature * jax.nn.logsumexp(next_q / temperature, axis=-1)  # [B]
        target = jax.lax.stop_gradient(td.bootstrap(t.reward, t.discount, next_value))
        td_error = target - td.select(self.q(params, t.observation), t.action)
        return jnp.mean(batch.weight * td.huber(td_error)), td_error


def main(env_steps: int = 50_000, directory: str | None = None) -> Policy:
    """Trains soft Q-learning on CartPole-v1; gives the best policy, read from its file."""
    config = RunConfig(
        env="CartPole-v1",
        agent=SoftQConfig(),
        agent_name="soft-q",
        env_steps=env_steps,
        directory=directory,
        learner=LearnerConfig(batch_size=64, updates_per_env_step=0.5, updates_per_call=128),
    )
    summary = Trainer(config, make_agent=SoftQ).run()
    print(summary)
    return Policy.load(summary.directory, make_agent=SoftQ, config=SoftQConfig())


if __name__ == "__main__":
    tyro.cli(main)
