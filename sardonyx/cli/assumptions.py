"""What a command assumes of a model's inputs where nobody says it, and whether that is why a model does not run.

That are the sizes of symbolic dimensions, 1 where nothing else is said, with which many models cannot run, and integers
that stand alone, as a sampling rate, which are random.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import errors
from sardonyx.cli.failure import CommandError
from sardonyx.cli.model_inputs import Array, open_dimensions, required_inputs
from sardonyx.cli.shapes import infer
from sardonyx.graph.types import numpy_dtype

# Sizes that are tried where one does not fit, and for how long.
_TRIED = (1, 2, 3, 4, 8, 16, 32, 64, 100, 128, 224, 256, 384, 512, 1024)
_SECONDS = 2.0


class Assumptions:
    """What was said of the inputs: `given` by name, as for `make_inputs`, `dims` by symbol, `feeds` what came of it."""

    def __init__(
        self, model: ir.Model, given: Mapping[str, str], dims: Mapping[str, int], feeds: Mapping[str, Array]
    ) -> None:
        self._model = model
        read = [value for value in model.graph.inputs if given.get(str(value.name), "").endswith(".npy")]
        made = [value for value in required_inputs(model) if value not in read]
        fixed = {*dims, *open_dimensions(read)}
        self._dims = dims
        known = set(open_dimensions(model.graph.inputs))
        self._read = {
            str(dim.value): size
            for value in read
            for dim, size in zip(value.shape or (), feeds[str(value.name)].shape, strict=False)
            if isinstance(dim, ir.SymbolicDim) and dim.value in known and dim.value not in dims
        }
        self.sizes = dict.fromkeys((name for name in open_dimensions(made) if name not in fixed), 1)
        self._numbers = [str(value.name) for value in made if value.name not in given and _is_one_integer(value)]

    @property
    def line(self) -> str:
        """The sizes that nobody gave, and how to give them; empty where there are none."""
        return sizes_not_given(self.sizes)

    def explained(self, error: errors.OnnxRuntimeError) -> CommandError | None:
        """The error of a run with what of the inputs is at fault, as far as it can be known; None where nothing is."""
        texts = self._misfits()
        if texts is None:  # the sizes fit: then what they hold may not
            about_values = isinstance(error, errors.InvalidArgument)
            texts = [self._all_sizes()] if self.sizes and not about_values else []
        if self._numbers:
            ways = " ".join(f"--input {name}=…" for name in self._numbers)
            texts.append(f"values that are not given are random: try {ways}")
        return CommandError(f"{error.message} ({'; '.join(texts)})") if texts else None

    def _misfits(self) -> list[str] | None:
        """For each size that keeps the model from running, one with which it would; None where all sizes fit."""
        sizes = {**self.sizes, **self._read, **self._dims}
        if self._fits(sizes):
            return None
        until = time.monotonic() + _SECONDS
        texts = [
            self._misfit(name, better) for name in sizes if (better := self._better(sizes, [name], until)) is not None
        ]
        if not texts and len(self.sizes) > 1 and (better := self._better(sizes, list(self.sizes), until)) is not None:
            texts = [self._misfit(name, better) for name in self.sizes]
        return texts or ([self._all_sizes()] if self.sizes else [])

    def _all_sizes(self) -> str:
        """Every size, where it is not known which of them is at fault."""
        given = {**self._read, **self._dims}
        if not given:
            return self.line
        missing = [f"{name} = {size}, which was not given" for name, size in self.sizes.items()]
        return f"with {', '.join([*(f'{name} = {size}' for name, size in given.items()), *missing])}"

    def _better(self, sizes: Mapping[str, int], names: list[str], until: float) -> int | None:
        """The size nearest to that of the first of these dimensions with which the model's shapes fit together."""
        now = sizes[names[0]]
        for size in sorted({*_TRIED, *sizes.values()}, key=lambda one: (abs(one - now), one)):
            if time.monotonic() > until:
                return None
            if size != now and size and self._fits({**sizes, **dict.fromkeys(names, size)}):
                return size
        return None

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        try:
            infer(self._model, sizes)
        except errors.OnnxRuntimeError:
            return False
        return True

    def _misfit(self, name: str, better: int) -> str:
        inputs = [str(value.name) for value in self._model.graph.inputs if name in open_dimensions([value])]
        of = "" if "[" in name else f" of {', '.join(inputs)}"
        if name in self.sizes:
            return f"{name}{of} is 1, as no size was given, which does not fit: {_way(name)}{better} does"
        if name in self._dims:
            return f"--dim {name}={self._dims[name]}{of} does not fit: {name} = {better} does"
        return f"{name}{of} is {self._read[name]} in the given file, which does not fit: {better} does"


def sizes_not_given(sizes: Mapping[str, int]) -> str:
    """What is told of symbolic dimensions to which nobody gave a size; empty where there are none."""
    if not sizes:
        return ""
    listed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    return f"{listed}: not given; {_way(list(sizes)[-1])}128 sets {'it' if len(sizes) == 1 else 'one'}"


def _way(name: str) -> str:
    return f"--dim '{name}'=" if "[" in name else f"--dim {name}="


def _is_one_integer(value: ir.Value) -> bool:
    integer = value.dtype is not None and np.issubdtype(numpy_dtype(value.dtype), np.integer)
    return bool(integer and value.shape is not None and all(isinstance(dim, int) and dim == 1 for dim in value.shape))


@contextmanager
def naming(assumptions: Assumptions) -> Iterator[None]:
    """Errors of a run say what was assumed for it."""
    try:
        yield
    except errors.OnnxRuntimeError as error:
        said: Any = assumptions.explained(error)
        if said is None:
            raise
        raise said from error
