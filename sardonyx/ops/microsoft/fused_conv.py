"""Convolution with a residual and an activation folded in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.kernel.program import Kernel
from sardonyx.ops import convolution
from sardonyx.ops.framework.operator import operator
from sardonyx.ops.microsoft.activations import activate, activation_of
from sardonyx.ops.microsoft.rules import DOMAIN, Array, wide


@operator("FusedConv", domain=DOMAIN)
class FusedConv(convolution.Conv):
    """activation(Conv(X, W) + B + Z); `activation_params` are the activation's parameters in order."""

    inputs: ClassVar[str] = "X, W, B?, Z?"
    outputs: ClassVar[str] = "Y"
    activation: str | None = None
    activation_params: tuple[float, ...] = ()

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return self.template(activation=activation_of(self.activation, self.activation_params))

    def run(self, x: Array, w: Array, bias: Array | None = None, residual: Array | None = None) -> Sequence[Any]:
        (y,) = super().run(wide(x), wide(w), None if bias is None else wide(bias))
        if residual is not None:
            y = y + wide(residual)
        return (activate(self.activation, y, self.activation_params).astype(x.dtype, copy=False),)
