"""The inputs of a model as runs give them: checked, with defaults for those that are left out, in the plan's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import errors, log
from sardonyx.api.arguments import wrong_argument
from sardonyx.api.building.shared_symbols import Contradiction, SharedSymbols
from sardonyx.api.building.signature import Signature
from sardonyx.api.running.feeds import InputSpec


class GivenInputs:
    """Made once for a session; any thread may ask. `names` are in the order in which plans take their values."""

    def __init__(self, signature: Signature, defaults: Mapping[str, Any], logger: log.Logger) -> None:
        """`defaults` are the values of initializers that a caller may override."""
        given = (*signature.inputs, *signature.overridable)
        self.names = list(signature.order)
        self._specs = {
            item.name: InputSpec(item.name, item.kind, item.sizes, logger) for item in given if item.kind is not None
        }
        self._checks = [(name, self._specs[name].raw, self._specs[name].optional) for name in self.names]
        self._defaults = defaults
        dims = {item.name: item.dims or () for item in given}
        self._shared_symbols = SharedSymbols([(name, dims[name]) for name in self.names])

    def checked(self, feeds: Mapping[str, Any], adapted: Mapping[str, Any]) -> list[Any]:
        """The values of all inputs, from what is fed or else the tensors of adapters; InvalidArgument for an input that
        is missing, unknown, or of another type or shape."""
        values = []
        used = 0
        for name, raw, optional in self._checks:
            if name in feeds:
                values.append(raw(feeds[name]))
                used += 1
            elif name in adapted:
                values.append(raw(adapted[name]))
            elif name in self._defaults:
                values.append(self._defaults[name])
            elif optional:
                values.append(None)
            else:
                raise errors.InvalidArgument(f"Missing Input: {name}")
        if used != len(feeds) or not adapted.keys() <= self._specs.keys():
            unknown = next(name for name in (*feeds, *adapted) if name not in self._specs)
            if not isinstance(unknown, str):
                raise wrong_argument("run()", "a str as the name of each input", unknown)
            raise errors.InvalidArgument(f"Invalid input name: {unknown}")
        return values

    def contradiction(self, values: Sequence[Any]) -> Contradiction | None:
        """Where dimensions that the model calls by one name have different sizes in these values of all inputs."""
        return self._shared_symbols.contradiction(values)

    def contradicts(self, feeds: Mapping[str, Any]) -> bool:
        """The same of arrays that are fed."""
        return self.contradiction([feeds.get(name, self._defaults.get(name)) for name in self.names]) is not None

    def all_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """The shapes of what is fed, and of the defaults of what is not."""
        return {**{name: np.shape(value) for name, value in self._defaults.items()}, **shapes}
