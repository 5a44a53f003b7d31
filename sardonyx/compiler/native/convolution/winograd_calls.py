"""Which convolutions Winograd's minimal filtering can do: those 3x3 of stride 1 or 2.

How it does them is imported for the first one that is not declined: with all that it needs, it is large, and models of
depthwise convolutions have none.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.native.convolution.algorithm import Algorithm
from sardonyx.compiler.native.convolution.convolution_call import ConvolutionCall

# Of fewer channels or filters than this the transforms cost more than they save.
_FEWEST = 16
_PRODUCTS = frozenset({"f32", "f32 tiles", "f16", "bfloat16"})


def declined(binder: Binder, call: ConvolutionCall) -> str | None:
    """Why a call cannot be done, or should not be, by Winograd's algorithm; None where it may."""
    windows = call.windows
    if not binder.settings.winograd:
        return "the session turns it off"
    if windows.kernel != (3, 3) or call.group != 1:
        return "the windows are not 3x3 over all channels"
    if windows.strides not in ((1, 1), (2, 2)) or windows.dilations != (1, 1):
        return f"the windows are {windows.strides} apart, their pixels {windows.dilations}"
    if call.product not in _PRODUCTS:
        return f"products are {call.product}"
    if not call.has_constant_weights:
        return "the weights are no constant"
    if min(call.channels, call.filters) < _FEWEST or 0 in call.result_shape:
        return f"{call.channels} channels and {call.filters} filters are too few"
    return None


def predict(binder: Binder, call: ConvolutionCall) -> float | None:
    """Nanoseconds on one thread; None where it cannot, or should not, be done so."""
    if declined(binder, call) is not None:
        return None
    from sardonyx.compiler.native.convolution.winograd import predicted_ns

    return predicted_ns(binder, call)


def bind(binder: Binder, call: ConvolutionCall) -> Sequence[Tensor]:
    """Add the steps, for the tiles and the cut that are predicted to be the fastest."""
    from sardonyx.compiler.native.convolution import winograd

    return winograd.bind(binder, call)


WINOGRAD = Algorithm("Winograd", predict, bind)
