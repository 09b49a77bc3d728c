"""A Linen module as two typed functions; all that agents see of Linen."""

import dataclasses
from typing import Any, Generic, TypeVar, cast, final

import flax.linen as nn

from jaxrl_async.types import Key, Params

Output = TypeVar("Output")


@final
@dataclasses.dataclass(frozen=True)
class Network(Generic[Output]):
    """``init(key, *inputs) -> params`` and ``(params, *inputs) -> Output``."""

    module: nn.Module

    def init(self, key: Key, *inputs: Any) -> Params:
        """Fresh parameters: nested dicts of arrays."""
        return self.module.init(key, *inputs)

    def __call__(self, params: Params, *inputs: Any) -> Output:
        """The module's output, whose type its class states."""
        return cast(Output, self.module.apply(params, *inputs))
