"""How attention is written into a graph: one operator over the heads as they are cached, one boolean mask.

transformers picks its attention and its masks by name. While a model is exported, the name `sdpa` stands for the two
functions below, in place of those that PyTorch runs fast:

- heads of keys and values are not repeated for the queries that share them, so that a cache is read where it lies;
- a mask is always there and is made by broadcasting, so that no shape and no value of the example decides about it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

# The functions are set for the whole process.
_LOCK = threading.RLock()


@contextlib.contextmanager
def exportable() -> Iterator[None]:
    """While it lasts, `sdpa` of transformers is what exports well."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    with _LOCK:
        attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
        mask = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
        ALL_ATTENTION_FUNCTIONS.register("sdpa", _attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa", _mask)
        try:
            yield
        finally:
            ALL_ATTENTION_FUNCTIONS.register("sdpa", attend)
            ALL_MASK_ATTENTION_FUNCTIONS.register("sdpa", mask)


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Any = None,
    **_: Any,
) -> tuple[Any, None]:
    """Queries (batch, heads, q, size), keys and values (batch, key heads, k, size) -> (batch, q, heads, size)."""
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    is_causal = bool(is_causal) and attention_mask is None
    if position_bias is not None:
        attention_mask = _biased(attention_mask, position_bias, is_causal, query, key)
        is_causal = False
    attended = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        scale=scaling,
        is_causal=is_causal,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended.transpose(1, 2), None


def _biased(mask: Any, bias: Any, is_causal: bool, query: Any, key: Any) -> Any:
    """A bias of positions with what the mask blocks, as transformers adds them up."""
    if mask is None:
        if not is_causal:
            return bias
        mask = torch.arange(query.shape[2])[:, None] >= torch.arange(key.shape[2])[None, :]
    if mask.dtype != torch.bool:
        return bias + mask
    return torch.where(mask, bias, torch.finfo(bias.dtype).min)


def _mask(
    batch_size: int,
    cache_position: Any = None,
    kv_length: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Any = None,
    q_length: int = 0,
    q_offset: int = 0,
    **_: Any,
) -> Any:
    """What each query may see, (batch or 1, 1, q or 1, k) of bool; None where all see everything.

    Versions of transformers name the queries' positions, or say how many there are and where they begin.
    """
    import transformers.masking_utils as masking

    padding = None if attention_mask is None else attention_mask[:, None, None, :]
    everything = getattr(masking, "bidirectional_mask_function", None)
    if everything is not None and mask_function is everything:
        return padding
    rows = torch.arange(q_offset, q_offset + q_length) if cache_position is None else cache_position
    columns = torch.arange(kv_offset, kv_offset + kv_length)
    seen = (mask_function or masking.causal_mask_function)(
        torch.arange(batch_size)[:, None, None, None],
        torch.arange(1)[None, :, None, None],
        rows[None, None, :, None],
        columns[None, None, None, :],
    )
    return seen if padding is None else seen & padding
