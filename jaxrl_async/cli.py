"""``python -m jaxrl_async train | evaluate | list``."""

import sys
from collections.abc import Sequence

USAGE = """\
usage: python -m jaxrl_async COMMAND ...

  train AGENT ENV [--env-steps N] [--agent.FIELD VALUE] [...]   train an agent
  evaluate RUN [--episodes N] [--seed N] [--env ID]             score a run's best policy
  list                                                          the agents and their tuned tasks

`python -m jaxrl_async train sac Pendulum-v1 --help` names every setting.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 done, 2 wrong usage."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    commands = {"train": train, "evaluate": evaluate, "list": show}
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    command, *rest = arguments
    if command not in commands:
        print(f"error: no command {command!r}\n{USAGE}", end="", file=sys.stderr)
        return 2
    from jaxrl_async.checks import ConfigError

    try:
        return commands[command](rest)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def train(arguments: list[str]) -> int:
    """``train AGENT ENV [--FIELD VALUE ...]``, every field of ``RunConfig`` as an option."""
    import tyro

    from jaxrl_async.agents import run_config
    from jaxrl_async.checks import ConfigError
    from jaxrl_async.config import RunConfig

    if len(arguments) < 2 or arguments[0].startswith("-") or arguments[1].startswith("-"):
        raise ConfigError("train needs an agent and an env: train sac Pendulum-v1 [--help]")
    agent, env, *rest = arguments
    default = run_config(agent, env)
    config = tyro.cli(
        RunConfig[type(default.agent)],
        default=default,
        args=rest,
        prog=f"python -m jaxrl_async train {agent} {env}",
    )
    from jaxrl_async.runtime.trainer import Trainer

    print(Trainer(config).run())
    return 0


def evaluate(arguments: list[str]) -> int:
    """``evaluate RUN [--episodes N] [--seed N] [--env ID]``, of a directory or a policy file."""
    import tyro

    from jaxrl_async.api import evaluate_policy

    result = tyro.cli(
        evaluate_policy,
        args=arguments,
        prog="python -m jaxrl_async evaluate",
        config=(tyro.conf.PositionalRequiredArgs,),
    )
    values = result.values()
    print(
        f"return {values['evaluation/return_mean']:,.1f} ± {values['evaluation/return_std']:,.1f},"
        f" from {values['evaluation/return_min']:,.1f} to {values['evaluation/return_max']:,.1f},"
        f" over {len(result.returns)} episodes of {values['evaluation/length_mean']:,.0f} steps"
    )
    return 0


def show(arguments: list[str]) -> int:
    """``list``: the agents and the tasks that they are tuned for."""
    from jaxrl_async.agents import AGENTS
    from jaxrl_async.checks import ConfigError

    if arguments and arguments[0] not in ("-h", "--help"):
        raise ConfigError(f"list takes no arguments, got {' '.join(arguments)}")
    for name, preset in AGENTS.items():
        print(f"{name:<6} {preset.summary}")
        print(f"       tuned for {', '.join(preset.tasks)}")
    return 0
