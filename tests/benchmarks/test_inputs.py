"""Inputs of the zoo's models."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.zoo import registry
from benchmarks.zoo.inputs import make_inputs


@pytest.mark.parametrize("name", registry.names())
def test_every_model_has_inputs_of_its_kinds(name: str) -> None:
    model = registry.get(name)
    made = make_inputs(model)
    for tensor in model.inputs:
        values = made[tensor.name]
        assert values.dtype == tensor.dtype
        assert np.isfinite(values).all()
        if tensor.fill == "ids":
            assert 0 <= values.min() <= values.max() < tensor.limit
