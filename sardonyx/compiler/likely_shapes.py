"""Sizes that symbolic dimensions are taken for when kernels are compiled and weights packed ahead of the first run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.ops.framework.dims import evaluate, free_symbols
from sardonyx.ops.framework.facts import Dim
from sardonyx.ops.framework.inference import Inference

# The number of images of a batch, their sides, and all other symbols.
IMAGES, SIDE, OTHER = 1, 512, 16
# Channels by which images are known.
_COLOURS = (1, 3, 4)


def likely_shapes(inputs: Sequence[ir.Value], inference: Inference, more: int = 0) -> list[tuple[int, ...]]:
    """Shapes that the inputs of a segment may have, with every symbol `more` than likely."""
    facts = [inference.fact(value) for value in inputs]
    dims = [() if fact is None or fact.shape is None else fact.shape for fact in facts]
    known = {name: size + more for shape in dims for name, size in _image_symbols(shape).items()}
    return [
        tuple(dim if isinstance(dim, int) else _likely(dim, known, OTHER + more) for dim in shape) for shape in dims
    ]


def _image_symbols(shape: Sequence[Dim]) -> dict[str, int]:
    """The symbols of a batch of images, with what they are likely to be."""
    if len(shape) != 4 or not (shape[1] in _COLOURS or shape[3] in _COLOURS):
        return {}
    likely = (IMAGES, SIDE, SIDE, SIDE)
    pairs = zip(shape, likely, strict=True)
    return {dim.value: size for dim, size in pairs if not isinstance(dim, int) and dim.value is not None}


def _likely(dim: ir.SymbolicDim, known: Mapping[str, int], size: int) -> int:
    """A dimension whose symbols are what is known of them, or `size`."""
    symbols = {} if dim.value is None else {symbol: known.get(symbol, size) for symbol in free_symbols(dim)}
    found = evaluate(dim, symbols) if dim.value is not None else size
    return size if found is None else max(0, found)
