"""Linear attention as a recurrence over a matrix state, with decay and the delta rule (Yang et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sardonyx import errors
from sardonyx.ops.framework.facts import Fact, unknown_dim
from sardonyx.ops.framework.operator import Operator, operator
from sardonyx.ops.microsoft.linear_quantization import padded
from sardonyx.ops.microsoft.rules import DOMAIN, Array, dim, divided, expect_rank, expect_shape, like, same, wide
from sardonyx.runtime.memory import memory

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

RULES = ("linear", "gated", "delta", "gated_delta")


def recur(
    query: Array, key: Array, value: Array, decay: Array | None, beta: Array | None, state: Array, scale: float
) -> tuple[Array, list[Array]]:
    """The outputs (batch, length, heads, value size) and the state after each token.

    query (batch, length, query heads, key size), key and value with their heads, state (batch, heads, key size,
    value size); fewer query than key heads are each shared by a group, and the other way round. decay, in log space,
    is (batch, length, heads, key size or 1), beta (batch, length, heads or 1); without beta there is no delta rule.
    """
    batch, length, heads = key.shape[:3]
    outputs = []
    states = []
    for t in range(length):
        if decay is not None:
            state = state * np.exp(decay[:, t, :, :, None])
        change = value[:, t]
        if beta is not None:
            seen = np.einsum("bhkv,bhk->bhv", state, key[:, t])
            change = (change - seen) * beta[:, t, :, None]
        state = state + key[:, t, :, :, None] * change[:, :, None, :]
        states.append(state)
        shared = query.shape[2]
        asked = query[:, t]
        if shared < heads:
            asked, source = np.repeat(asked, heads // shared, axis=1), state
        else:
            source = np.repeat(state, shared // heads, axis=1)
        outputs.append(np.einsum("bhkv,bhk->bhv", source, asked) * np.float32(scale))
    y = (
        np.stack(outputs, axis=1)
        if outputs
        else np.zeros((batch, 0, max(heads, query.shape[2]), value.shape[-1]), np.float32)
    )
    return y, states


@operator("LinearAttention", domain=DOMAIN)
class LinearAttention(Operator):
    """S = exp(g) S + beta k (v - exp(g) S^T k)^T; output scale * S^T q. `update_rule` says which terms there are.

    query (batch, length, q_num_heads * key size), key and value with kv_num_heads. The state (batch, kv heads, key
    size, value size) has `state_window` slots in front where that is positive, one for each of the last tokens.
    """

    inputs: ClassVar[str] = "query, key, value, past_state?, decay?, beta?"
    outputs: ClassVar[str] = "output, present_state"
    host_reason: ClassVar[str] = "a recurrence over tokens"
    q_num_heads: int
    kv_num_heads: int
    update_rule: str = "gated_delta"
    scale: float = 0.0
    chunk_size: int = 64
    state_window: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        query, key, value, past, decay, beta = padded(inputs, 6)
        if self.update_rule not in RULES:
            raise ValueError(f"attribute 'update_rule' must be one of {', '.join(RULES)}, not '{self.update_rule}'")
        batch, length = query.shape[:2]
        heads = self.kv_num_heads
        q, v = divided(wide(query), self.q_num_heads, "query"), divided(wide(value), heads, "value")
        k = divided(wide(key), key.shape[-1] // max(1, q.shape[-1]), "key")
        if k.shape[2] != heads:
            k = np.repeat(k, heads // k.shape[2], axis=2)
        gate = rate = None
        if self.update_rule.startswith("gated"):
            gate = divided(_required(decay, "decay"), heads, "decay")
        if self.update_rule.endswith("delta"):
            rate = _required(beta, "beta")
        for name, one in (("key", key), ("value", value), ("decay", decay), ("beta", beta)):
            expect_shape(name, None if one is None else one.shape, (batch, length, unknown_dim()))
        held = past[-1] if past is not None and self.state_window else past
        expect_shape("past_state", None if held is None else held.shape, (batch, heads, q.shape[-1], v.shape[-1]))
        state = np.zeros((batch, heads, q.shape[-1], v.shape[-1]), np.float32) if held is None else wide(held)
        y, states = recur(q, k, v, gate, rate, state, self.scale or 1 / math.sqrt(q.shape[-1]))
        kind = query.dtype if past is None else past.dtype
        width = y.shape[-2] * y.shape[-1]
        return y.reshape(batch, length, width).astype(query.dtype), self.present(state, states).astype(kind)

    def present(self, before: Array, states: list[Array]) -> Array:
        """The last state, or a window of the last states with zeros where no token of this call was."""
        if not self.state_window:
            return states[-1] if states else before
        memory.require(self.state_window * (before.nbytes + before.itemsize), "a window of states")
        recent = states[-self.state_window :]
        return np.stack([np.zeros_like(before)] * (self.state_window - len(recent)) + recent)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        query, value = inputs[0], inputs[2]
        past = inputs[3] if len(inputs) > 3 else None
        expect_rank(query, (3,), "query")
        expect_rank(value, (3,), "value")
        batch, size = dim(query, 0), dim(value, 2) // self.kv_num_heads
        y = like(query, (batch, dim(query, 1), size * max(self.q_num_heads, self.kv_num_heads)))
        state = (batch, self.kv_num_heads, dim(query, 2) // self.q_num_heads, size)
        return [y, like(past or query, (self.state_window, *state) if self.state_window else state)]


def _required(array: Array | None, name: str) -> Array:
    if array is None:
        raise ValueError(f"this update rule needs the input '{name}'")
    return wide(array)


@operator("LinearAttentionGate", domain=DOMAIN)
class LinearAttentionGate(Operator):
    """decay = decay_scale * softplus(a + dt_bias) and beta = sigmoid(b), in float32."""

    inputs: ClassVar[str] = "a, dt_bias, decay_scale, b?"
    outputs: ClassVar[str] = "decay, beta?"
    host_reason: ClassVar[str] = "two outputs of different inputs"

    def run(self, *inputs: Any) -> Sequence[Array]:
        a, bias, scale = inputs[:3]
        decay = (scale * np.logaddexp(wide(a) + bias, np.float32(0))).astype(a.dtype)
        if len(inputs) < 4 or inputs[3] is None:
            if self.has_output(1):
                raise ValueError("the output 'beta' needs the input 'b'")
            return (decay,)
        return decay, (1 / (1 + np.exp(-wide(inputs[3])))).astype(a.dtype)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [same(inputs[0]), same(inputs[0])]


@operator("GatedDeltaNet", domain=DOMAIN)
class GatedDeltaNet(Operator):
    """Linear attention over packed tokens: query, key, value (tokens, heads, size), a state for each sequence.

    States are (batch, value heads, value size, key size) in float32. Tokens belong to the sequences of `cu_seqlens`,
    or to as many equal ones as the state has. Query, key and value may be packed along the last axis, or have
    (batch, length) in place of tokens.
    """

    inputs: ClassVar[str] = (
        "query, key?, value?, cu_seqlens?, decay?, beta?, initial_state?, a_log?, dt_bias?, capture_count?, "
        "state_update_active?"
    )
    outputs: ClassVar[str] = "output, final_state?, state_update?"
    host_reason: ClassVar[str] = "a recurrence over tokens"
    update_rule: str = "gated_delta"
    gate_activation: str = "none"
    beta_activation: str = "none"
    qk_l2_norm: int = 0
    scale: float = 0.0
    chunk_size: int = 64
    state_update_capacity: int = 0

    def run(self, *inputs: Any) -> Sequence[Array]:
        given = padded(inputs, 11)
        query, key, value, sums, decay, beta, initial, a_log, dt_bias = given[:9]
        if self.update_rule not in RULES:
            raise ValueError(f"attribute 'update_rule' must be one of {', '.join(RULES)}, not '{self.update_rule}'")
        if self.state_update_capacity or self.qk_l2_norm:
            raise errors.NotImplemented("GatedDeltaNet runs without compact state updates and without qk_l2_norm only")
        if key is None:
            query, key, value = self.unpacked(query, initial)
        flat = [wide(x).reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) for x in (query, key, value)]
        tokens, heads = flat[2].shape[:2]
        gate = rate = None
        if self.update_rule.startswith("gated"):
            raw = _required(decay, "decay")
            terms = math.prod(raw.shape[query.ndim - 2 :])  # of one token: for each head, or each element of its keys
            gate = self.decay(divided(raw.reshape(tokens, terms), heads, "decay"), a_log, dt_bias)
        if self.update_rule.endswith("delta"):
            rate = _required(beta, "beta").reshape(tokens, heads)
            rate = 1 / (1 + np.exp(-rate)) if self.beta_activation == "sigmoid" else rate
        shared = heads // flat[1].shape[1]
        flat[1] = np.repeat(flat[1], shared, axis=1)
        batch = len(sums) - 1 if sums is not None else len(_required(initial, "initial_state"))
        ends = sums.tolist() if sums is not None else [tokens // max(1, batch) * index for index in range(batch + 1)]
        y = np.empty((tokens, heads, flat[2].shape[-1]), np.float32)
        final = np.empty((batch, heads, flat[2].shape[-1], flat[0].shape[-1]), np.float32)
        scale = self.scale or 1 / math.sqrt(flat[0].shape[-1])
        for entry in range(batch):
            part = slice(ends[entry], ends[entry + 1])
            before = np.zeros_like(final[:1]) if initial is None else initial[entry : entry + 1]
            state = np.swapaxes(before, -1, -2)
            own: list[Any] = [None if x is None else x[None, part] for x in (*flat, gate, rate)]
            result, states = recur(own[0], own[1], own[2], own[3], own[4], state, scale)
            y[part] = result[0]
            final[entry] = np.swapaxes(states[-1] if states else state, -1, -2)[0]
        return y.reshape(*query.shape[:-2], *y.shape[1:]).astype(query.dtype), final

    def decay(self, raw: Array, a_log: Array | None, dt_bias: Array | None) -> Array:
        """The log-space decay, from the raw projection where `gate_activation` is qwen."""
        if self.gate_activation == "none":
            return raw
        softened = np.logaddexp(raw + _required(dt_bias, "dt_bias")[:, None], np.float32(0))
        return np.asarray(-np.exp(_required(a_log, "a_log"))[:, None] * softened)

    def unpacked(self, packed: Array, initial: Array | None) -> list[Array]:
        """Query, key and value of one packed tensor; the state tells their sizes."""
        _, heads, value_size, size = _required(initial, "initial_state").shape
        width = packed.shape[-1] - heads * value_size
        keys = width // (2 * size)
        parts = np.split(packed, [keys * size, 2 * keys * size], axis=-1)
        return [divided(part, count, "query") for part, count in zip(parts, (keys, keys, heads), strict=True)]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        given = padded(inputs, 11)
        query, value, sums, initial = given[0], given[2], given[3], given[6]
        if query is None or query.shape is None or value is None or value.shape is None:
            return [like(query, None), same(initial)]
        batch = dim(initial, 0) if initial is not None else dim(sums, 0) - 1 if sums is not None else unknown_dim()
        state = (batch, value.shape[-2], value.shape[-1], query.shape[-1])
        final = same(initial) if initial is not None else like(given[4], state)
        return [like(query, (*query.shape[:-2], *value.shape[-2:])), final]
