"""A written graph beside the PyTorch model that it comes from, on sizes that were not traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sardonyx import errors
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.models.arrays import as_numpy
from sardonyx.models.export.graphs import Graph, Sizes

# The largest difference, as a part of the largest number of an output.
TOLERANCES = {"float32": 2e-4, "float16": 2e-2, "bfloat16": 8e-2, "float64": 1e-6}


@dataclass(frozen=True)
class Difference:
    """How far an output is from PyTorch's, for some sizes."""

    output: str
    sizes: Sizes
    largest: float  # of all differences
    scale: float  # the largest magnitude in PyTorch's output

    @property
    def relative(self) -> float:
        return self.largest / self.scale if self.scale else self.largest


def check(path: Path, graph: Graph, tolerance: float | None = None) -> float:
    """The largest difference as a part of an output's largest number; Fail where one is above the tolerance.

    The tolerance is that of the model's type of numbers if None.
    """
    limit = TOLERANCES.get(_type_name(graph.model), TOLERANCES["float32"]) if tolerance is None else tolerance
    session = InferenceSession(path, SessionOptions())
    shown = {value.name: value for value in session.get_inputs()}
    worst = 0.0
    fixed = _fixed(graph, {name: value.shape for name, value in shown.items()})
    for seed, given in enumerate(graph.sizes):
        sizes = {**given, **fixed}
        example = graph.example(sizes, seed)
        with torch.no_grad():
            expected = {name: as_numpy(tensor) for name, tensor in graph.call(example).items()}
        names = [value.name for value in session.get_outputs()]
        try:
            found = session.run(names, {name: as_numpy(tensor) for name, tensor in example.items() if name in shown})
        except errors.OnnxRuntimeError as error:
            raise errors.Fail(
                f"{path.name} does not take the sizes {_text(sizes)}, which the PyTorch model takes: {error.message}"
            ) from error
        for name, array in zip(names, found, strict=True):
            difference = _difference(name, sizes, np.asarray(array), expected[name], path)
            if not difference.relative <= limit:
                raise errors.Fail(
                    f"{path.name} differs from PyTorch: {name} by {difference.largest:.3g} where its largest number "
                    f"is {difference.scale:.3g} ({difference.relative:.2g} of it, allowed {limit:.2g}), for the sizes "
                    f"{_text(sizes)}"
                )
            worst = max(worst, difference.relative)
    return worst


def _fixed(graph: Graph, shapes: Mapping[str, Sequence[int | str | None]]) -> Sizes:
    """Sizes by name that the model has fixed, of those that it may fix."""
    return {
        dim.removeprefix("?"): size
        for one in graph.inputs
        for dim, size in zip(one.dims, shapes.get(one.name, ()), strict=False)
        if isinstance(dim, str) and dim.startswith("?") and isinstance(size, int)
    }


def _difference(name: str, sizes: Sizes, found: np.ndarray, expected: np.ndarray, path: Path) -> Difference:
    if found.shape != expected.shape:
        raise errors.Fail(
            f"{path.name} differs from PyTorch: {name} has the shape {found.shape}, expected {expected.shape}, for "
            f"the sizes {_text(sizes)}"
        )
    ours, theirs = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(np.where(finite, 0.0, theirs), np.where(finite, 0.0, ours), equal_nan=True):
        return Difference(name, sizes, float("inf"), 1.0)
    both = np.where(finite, ours, 0.0), np.where(finite, theirs, 0.0)
    return Difference(
        name,
        sizes,
        float(np.abs(both[0] - both[1]).max(initial=0.0)),
        float(np.abs(both[1]).max(initial=0.0)),
    )


def _type_name(model: Any) -> str:
    return str(getattr(model, "dtype", "float32")).removeprefix("torch.")


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
