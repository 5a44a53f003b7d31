"""QMoE: each token goes through its k best experts, whose weights have 2, 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.operator import Cost, operator
from sardonyx.ops.microsoft.gelu import SQRT_2_OVER_PI
from sardonyx.ops.microsoft.integer_matmul import moved
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.packed_weights import Array, WeightCache, expand_blocks, unpack
from sardonyx.ops.microsoft.rules import DOMAIN, SameAsFirst, dim, wide

KNOWN_ACTIVATIONS = ("relu", "gelu", "silu", "identity", "swiglu")


@operator("QMoE", domain=DOMAIN)
class QMoE(SameAsFirst):
    """The sum over a token's k best experts of softmax(their router logits) * fc2(activation(fc1(token))).

    The weights of an expert are (N, K) codes, packed along K with the lowest bits first, with a scale for each row or
    each block of a row. For swiglu the gate and the linear part are alternate rows of fc1 (swiglu_fusion 1), its halves
    (2), or fc1 and fc3 (0).
    """

    inputs: ClassVar[str] = (
        "input, router_probs, fc1_experts_weights, fc1_scales?, fc1_experts_bias?, fc2_experts_weights, fc2_scales?, "
        "fc2_experts_bias?, fc3_experts_weights?, fc3_scales?, fc3_experts_bias?, fc1_zero_points?, fc2_zero_points?, "
        "fc3_zero_points?, router_weights?, fc1_global_scale?, fc2_global_scale?, fc1_act_scale?, fc2_act_scale?, "
        "fc1_act_block_scale?, fc2_act_block_scale?"
    )
    outputs: ClassVar[str] = "output"
    k: int = 1
    accuracy_level: int = 0
    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    activation_type: str = "relu"
    block_size: int | None = None
    expert_weight_bits: int = 4
    fc1_expert_weight_bits: int | None = None
    fc2_expert_weight_bits: int | None = None
    fc3_expert_weight_bits: int | None = None
    normalize_routing_weights: int = 0
    quant_type: str = "int"
    swiglu_fusion: int = 0
    swiglu_limit: float | None = None
    use_sparse_mixer: int = 0
    weights_prepacked: int = -1
    host_reason: ClassVar[str] = "the experts of a token depend on the data"

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        gated = len(node.inputs) > 8 and node.inputs[8] is not None
        for unknown, text in (
            (self.quant_type != "int", f"quant_type='{self.quant_type}'; 'int' is known"),
            (self.weights_prepacked == 1, "weights_prepacked=1, a layout of one provider; export it with 0"),
            (self.use_sparse_mixer and self.k != 2, f"use_sparse_mixer=1 with k={self.k}; 2 is known"),
            (gated and self.activation_type != "swiglu", f"fc3 weights with activation '{self.activation_type}'"),
            (self.activation_type not in KNOWN_ACTIVATIONS, f"activation_type='{self.activation_type}'"),
        ):
            if unknown:
                raise errors.NotImplemented(f"QMoE node '{node.name}' has {text}")
        self._caches = [WeightCache(node, indices) for indices in ((2, 3, 11), (5, 6, 12), (8, 9, 13))]

    def run(self, *inputs: Any) -> Sequence[Array]:
        given = padded(inputs, 21)
        x, logits, router_weights = given[0], given[1], given[14]
        tokens = wide(x).reshape(-1, x.shape[-1])
        if logits.shape[0] != len(tokens) or not 1 <= self.k <= logits.shape[1]:
            raise ValueError(f"input 'router_probs' {logits.shape} does not fit {len(tokens)} tokens and k = {self.k}")
        chosen, shares = self.routes(wide(logits), None if router_weights is None else wide(router_weights))
        result = np.zeros_like(tokens)
        weights = [self.weights(given, index) for index in range(3)]
        biases = [given[4], given[7], given[10]]
        for expert in np.unique(chosen):
            rows, place = np.nonzero(chosen == expert)
            y = self.expert(tokens[rows], int(expert), weights, biases)
            np.add.at(result, rows, shares[rows, place][:, None] * y)
        return (result.reshape(x.shape).astype(x.dtype),)

    def routes(self, logits: Array, router_weights: Array | None) -> tuple[Array, Array]:
        """The experts of each token, best first, and the share that each of them has."""
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : self.k]
        if router_weights is not None:
            shares = np.take_along_axis(router_weights, chosen, axis=1)
            if self.normalize_routing_weights:
                shares = shares / shares.sum(axis=1, keepdims=True)
            return chosen, shares
        best = np.take_along_axis(logits, chosen, axis=1)
        powers = np.exp(best - best.max(axis=1, keepdims=True))
        return chosen, powers / powers.sum(axis=1, keepdims=True)

    def expert(self, x: Array, expert: int, weights: Sequence[Array | None], biases: Sequence[Array | None]) -> Array:
        """One expert's output for some tokens."""

        def layer(index: int, values: Array) -> Array:
            weight, bias = weights[index], biases[index]
            assert weight is not None
            y: Array = values @ weight[expert].T
            return y if bias is None else y + wide(bias[expert])

        first = layer(0, x)
        if self.activation_type == "swiglu":
            return layer(1, self.swiglu(first, layer(2, x) if weights[2] is not None else None))
        return layer(1, activated(self.activation_type, first))

    def swiglu(self, first: Array, third: Array | None) -> Array:
        """G * sigmoid(alpha G) * (L + beta), both clamped."""
        if third is not None:
            gate, linear = first, third
        elif self.swiglu_fusion == 1:
            gate, linear = first[:, ::2], first[:, 1::2]
        elif self.swiglu_fusion == 2:
            gate, linear = np.split(first, 2, axis=1)
        else:
            raise ValueError("swiglu needs input 'fc3_experts_weights' or attribute 'swiglu_fusion' 1 or 2")
        if self.swiglu_limit is not None:
            limit = np.float32(self.swiglu_limit)
            gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
        opened = 1 / (1 + np.exp(-np.float32(self.activation_alpha) * gate))
        return np.asarray(gate * opened * (linear + np.float32(self.activation_beta)))

    def weights(self, given: Sequence[Array | None], index: int) -> Array | None:
        """The real weights of one layer of all experts, (experts, N, K) in float32."""
        codes, scales, zero_points = (given[place] for place in ((2, 3, 11), (5, 6, 12), (8, 9, 13))[index])
        if codes is None:
            return None
        if scales is None:
            raise ValueError(f"input 'fc{index + 1}_scales' must be given for quant_type 'int'")
        return self._caches[index].get(
            (codes, scales, zero_points), lambda: self.real(codes, scales, zero_points, index)
        )

    def real(self, packed: Array, scales: Array, zero_points: Array | None, index: int) -> Array:
        """(q - zero_point) * scale for one layer."""
        override = (self.fc1_expert_weight_bits, self.fc2_expert_weight_bits, self.fc3_expert_weight_bits)[index]
        bits = self.expert_weight_bits if override is None else override
        codes = unpack(packed, bits).astype(np.float32)
        steps = wide(scales)
        origins: Array = np.full((), 1 << (bits - 1), np.float32)
        if zero_points is not None:
            origins = unpack(zero_points, bits)[..., : scales.shape[-1]].astype(np.float32)
        # One parameter for each row, or one for each block of a row.
        block, length = codes.shape[-1], codes.shape[-1]
        if scales.ndim == 3:
            block = self.block_size or length
        else:
            steps, origins = steps[..., None], origins[..., None] if origins.ndim else origins
        spread = [expand_blocks(array, block, length) if array.ndim else array for array in (steps, origins)]
        return np.asarray((codes - spread[1]) * spread[0])

    def cost(self, inputs: Sequence[Fact | None], outputs: Sequence[Fact]) -> Cost:
        router, first, second = inputs[1], inputs[2], inputs[5]
        sizes = [dim(router, 0), dim(first, 1), dim(second, 1), dim(inputs[0], -1)]
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) != 4:
            return Cost(None, moved([*inputs, *outputs]))
        tokens, rows, columns, width = numbers
        inner = rows // 2 if self.swiglu_fusion else rows
        return Cost(2.0 * tokens * self.k * (rows * width + inner * columns), moved([*inputs, *outputs]))


def activated(name: str, x: Array) -> Array:
    """The activations of experts other than swiglu; gelu is its tanh approximation."""
    if name == "relu":
        return np.maximum(x, 0)
    if name == "silu":
        return np.asarray(x / (1 + np.exp(-x)))
    if name == "gelu":
        return np.asarray(0.5 * x * (1 + np.tanh(np.float32(SQRT_2_OVER_PI) * (x + np.float32(0.044715) * x**3))))
    return x
