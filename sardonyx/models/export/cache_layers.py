"""The layers of transformers' caches as a graph needs them: each holds what it is given and writes over nothing.

transformers' own append what comes first to an empty tensor, and copy new states into the memory of the old ones.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from sardonyx import errors


def growing(keys: Any, values: Any) -> Any:
    """A layer of keys and values (batch, heads, length, size) that keeps all of its past: that of a window, too, whose
    masks hide what has left it."""
    layer = growing_class()()
    layer.fill(keys, values)
    return layer


def states(conv: Any = None, recurrent: Any = None) -> Any:
    """A layer with the last columns (batch, channels, kernel) that a convolution has seen, and a recurrent state."""
    layer = _state_class()()
    layer.device, layer.dtype = (conv if recurrent is None else recurrent).device, torch.float32
    if conv is not None:
        layer.conv_states[0], layer.is_conv_states_initialized[0] = conv.clone(), True
        layer.conv_kernel_size[0] = conv.shape[-1]
    if recurrent is not None:
        layer.recurrent_states[0], layer.is_recurrent_states_initialized[0] = recurrent.clone(), True
    layer.has_previous_state[0] = True
    return layer


def has_states(layer: Any) -> bool:
    """Whether a layer keeps states; NotImplemented where it keeps several, or keys and values beside them."""
    mixin = _state_mixin()
    if mixin is None or not isinstance(layer, mixin):
        return False
    if layer.number_of_states > 1 or hasattr(layer, "keys"):
        raise errors.NotImplemented(f"a {type(layer).__name__} keeps more than one state, which is not exported")
    return True


@functools.cache
def growing_class() -> Any:
    from transformers.cache_utils import DynamicLayer

    class Growing(DynamicLayer):  # type: ignore[misc]
        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if self.is_initialized:
                key_states = torch.cat([self.keys, key_states], dim=-2)
                value_states = torch.cat([self.values, value_states], dim=-2)
            self.fill(key_states, value_states)
            return key_states, value_states

        def fill(self, keys: Any, values: Any) -> None:
            self.dtype, self.device = keys.dtype, keys.device
            self.keys, self.values = keys, values
            self.is_initialized = True

    return Growing


def _state_mixin() -> Any:
    """The class of layers with states; None for versions of transformers whose models have caches of their own."""
    import transformers.cache_utils as cache_utils

    return getattr(cache_utils, "LinearAttentionCacheLayerMixin", None)


@functools.cache
def _state_class() -> Any:
    from transformers.cache_utils import LinearAttentionLayer

    class States(LinearAttentionLayer):  # type: ignore[misc]
        def update_conv_state(self, conv_states: Any, state_idx: int = 0, **_: Any) -> Any:
            seen = torch.cat([self.conv_states[state_idx], conv_states], dim=-1)
            self.conv_states[state_idx] = seen[..., -self.conv_kernel_size[state_idx] :]
            return seen

        def update_recurrent_state(self, recurrent_states: Any, state_idx: int = 0, **_: Any) -> Any:
            self.recurrent_states[state_idx] = recurrent_states
            return recurrent_states

    return States
