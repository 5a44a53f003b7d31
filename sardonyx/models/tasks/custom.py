"""`ORTModelForCustomTasks`: any model of one file, with inputs and outputs as it calls them."""

from __future__ import annotations

from typing import Any

from sardonyx.models.arrays import Array
from sardonyx.models.tasks.one_pass import OnePass


class ORTModelForCustomTasks(OnePass):
    """A model whose inputs and outputs no other class describes."""

    def forward(self, *, return_dict: bool | None = True, **inputs: Array) -> Any:
        """The outputs by the model's names for inputs by the model's names; without `return_dict` a tuple."""
        return self._forward({}, inputs, return_dict)
