"""Configs to JSON, and changes to them by name."""

import dataclasses
import difflib
import itertools
from collections.abc import Mapping
from typing import Any

from jaxrl_async.checks import ConfigError


def to_json(config: Any) -> Any:
    """A config as JSON values; floats that JSON does not know are refused by ``json.dumps``."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_json(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(key): to_json(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [to_json(value) for value in config]
    return config


def replace(config: Any, *layers: Mapping[str, Any], prefix: str = "") -> Any:
    """A copy of a config dataclass with the changes of each layer, later ones winning.

    Args:
      config: a frozen dataclass, perhaps with others as its parts.
      layers: field names to values; a part's fields as a nested mapping or by dotted names.
      prefix: where ``config`` itself lies, for messages.

    Raises:
      ConfigError: there is no such field, or the result is refused by its own checks.
    """
    valid = [f.name for f in dataclasses.fields(config)]
    values: dict[str, Any] = {}
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for dotted, value in itertools.chain.from_iterable(layer.items() for layer in layers):
        name, _, rest = dotted.partition(".")
        is_part = name in valid and dataclasses.is_dataclass(getattr(config, name))
        if name not in valid or (rest and not is_part):
            near = difflib.get_close_matches(name, valid, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            has = f"{prefix.rstrip('.') or 'RunConfig'} has {', '.join(valid)}"
            raise ConfigError(f"{prefix}{dotted} = {value!r}: no such field; {hint}{has}")
        if rest or (is_part and isinstance(value, Mapping)):
            parts.setdefault(name, []).append({rest: value} if rest else value)
        else:  # lists, as JSON has them, become the tuples of a hashable config
            parts.pop(name, None)
            values[name] = tuple(value) if isinstance(value, list) else value
    for name, changes in parts.items():
        part = values.get(name, getattr(config, name))
        values[name] = replace(part, *changes, prefix=f"{prefix}{name}.")
    return dataclasses.replace(config, **values)
