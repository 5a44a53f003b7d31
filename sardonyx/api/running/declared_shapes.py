"""Results whose shape is another one than the model declares: a warning, as in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import log

# The sizes that a model declares for an output; None where it declares no number.
Sizes = tuple[int | None, ...]


def warn_of_other_shapes(
    declared: Mapping[str, Sizes | None], names: Sequence[str], results: Sequence[Any], logger: log.Logger
) -> None:
    """Warn where a result has another shape than is declared for its name."""
    for name, value in zip(names, results, strict=True):
        sizes = declared.get(name)
        if sizes is None or not isinstance(value, np.ndarray):
            continue
        shape = value.shape
        if shape != sizes and not _fits(shape, sizes):
            text = ",".join("-1" if size is None else str(size) for size in sizes)
            logger.warning(
                f"Expected shape from model of {{{text}}} does not match actual shape of "
                f"{{{','.join(map(str, shape))}}} for output {name}",
                "executor",
            )


def _fits(shape: tuple[int, ...], sizes: Sizes) -> bool:
    """Whether a shape has the rank and the known sizes that the model declares."""
    return len(shape) == len(sizes) and all(
        size is None or size == found for size, found in zip(sizes, shape, strict=True)
    )
