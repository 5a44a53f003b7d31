"""Mixture of experts: each token goes through the experts that its router prefers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Cost, operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.qmoe import activated
from sardonyx.ops.microsoft.rules import DOMAIN, Array, SameAsFirst, dim, wide


@operator("MoE", domain=DOMAIN)
class MoE(SameAsFirst):
    """The sum over a token's k best experts of its routing weight * fc2(activation(fc1(token))).

    Weights are (experts, out, in). For swiglu the gate and the linear part are alternate rows of fc1
    (`swiglu_fusion` 1), its halves (2), or fc1 and fc3 (0). As in onnxruntime's kernel for the CPU, `use_sparse_mixer`
    changes nothing.
    """

    inputs: ClassVar[str] = (
        "input, router_probs, fc1_experts_weights, fc1_experts_bias?, fc2_experts_weights, fc2_experts_bias?, "
        "fc3_experts_weights?, fc3_experts_bias?"
    )
    outputs: ClassVar[str] = "output"
    host_reason: ClassVar[str] = "the experts of a token depend on the data"
    k: int = 1
    activation_type: str = "relu"
    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    normalize_routing_weights: int = 0
    swiglu_fusion: int = 0
    swiglu_limit: float | None = None
    use_sparse_mixer: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        given = padded(inputs, 8)
        x, logits = given[0], given[1]
        layers = (given[2:4], given[4:6], given[6:8])
        if self.use_sparse_mixer and self.k != 2:
            raise ValueError(f"use_sparse_mixer needs k = 2, not {self.k}")
        if self.activation_type not in ("relu", "gelu", "silu", "swiglu", "identity"):
            raise ValueError(f"unknown attribute 'activation_type' '{self.activation_type}'")
        if layers[2][0] is not None and self.activation_type != "swiglu":
            raise errors.NotImplemented(f"MoE with fc3 weights and activation '{self.activation_type}'")
        tokens = wide(x).reshape(-1, x.shape[-1])
        if logits.shape[0] != len(tokens) or not 1 <= self.k <= logits.shape[1]:
            raise ValueError(f"input 'router_probs' {logits.shape} does not fit {len(tokens)} tokens and k = {self.k}")
        chosen, shares = self.routes(wide(logits))
        result = np.zeros_like(tokens)
        for expert in np.unique(chosen):
            rows, place = np.nonzero(chosen == expert)
            y = self.expert(tokens[rows], int(expert), layers)
            np.add.at(result, rows, shares[rows, place][:, None] * y)
        return (result.reshape(x.shape).astype(x.dtype),)

    def routes(self, logits: Array) -> tuple[Array, Array]:
        """The experts of each token, best first, and their weights."""
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = powers / powers.sum(axis=1, keepdims=True)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : self.k]
        shares = np.take_along_axis(probabilities, chosen, axis=1)
        if self.normalize_routing_weights:
            shares = shares / shares.sum(axis=1, keepdims=True)
        return chosen, shares

    def expert(self, x: Array, expert: int, layers: Sequence[Sequence[Array | None]]) -> Array:
        def layer(index: int, values: Array) -> Array:
            weight, bias = layers[index]
            if weight is None:
                raise ValueError("swiglu needs input 'fc3_experts_weights' or attribute 'swiglu_fusion' 1 or 2")
            y: Array = values @ wide(weight[expert]).T
            return y if bias is None else y + wide(bias[expert])

        first = layer(0, x)
        if self.activation_type != "swiglu":
            return layer(1, activated(self.activation_type, first))
        if self.swiglu_fusion == 1:
            gate, linear = first[:, ::2], first[:, 1::2]
        elif self.swiglu_fusion == 2:
            gate, linear = np.split(first, 2, axis=1)
        else:
            gate, linear = first, layer(2, x)
        if self.swiglu_limit is not None:
            limit = np.float32(self.swiglu_limit)
            gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
        opened = gate / (1 + np.exp(-np.float32(self.activation_alpha) * gate))
        return layer(1, opened * (linear + np.float32(self.activation_beta)))

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        router, first, second = inputs[1], inputs[2], inputs[4]
        sizes = [dim(router, 0), dim(first, 1), dim(first, 2), dim(second, 1), dim(second, 2)]
        numbers = [size for size in sizes if isinstance(size, int)]
        moved = super().cost(inputs, outputs).bytes
        if len(numbers) != 5:
            return Cost(None, moved)
        tokens, rows, width, out, inner = numbers
        return Cost(2.0 * tokens * self.k * (rows * width + inner * out), moved)
