"""What the quantizers refuse."""

from __future__ import annotations

from sardonyx import errors


class InvalidQuantization(errors.InvalidArgument, ValueError):
    """An argument of a quantizer that does not fit, or a model that cannot be quantised as was asked.

    Also a `ValueError`: this is what programs written for onnxruntime catch around its quantizers.
    """
