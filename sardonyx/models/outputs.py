"""What models give: the output classes of transformers, which are dictionaries, tuples and objects in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sardonyx.models.arrays import Array
from sardonyx.models.requirements import installed, require


def model_output(class_name: str, values: Mapping[str, Array]) -> Any:
    """These values as a class of `transformers.modeling_outputs`.

    Where the class has no field for one of them, and where torch, which that module is made with, is not installed,
    the output is a plain `ModelOutput` of the same values.
    """
    if class_name and installed("torch"):
        found = getattr(require("transformers.modeling_outputs", "Giving results"), class_name)
        if values.keys() <= {field.name for field in dataclasses.fields(found)}:
            return found(**values)
    return require("transformers.utils", "Giving results").ModelOutput(**values)
