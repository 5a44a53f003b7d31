"""How far a quantised model is from the float one: of each output, and of each layer."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.graph.load import load_model
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.search.recipe import named_model

Array: TypeAlias = np.ndarray[Any, Any]
Feeds: TypeAlias = Mapping[str, Array]

# What quantizers call the dequantised form of a value whose own name the quantised form or nothing has.
_SUFFIXES = ("", "_DequantizeLinear_Output", "_QuantizeLinear_Input")
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class Deviation:
    """How far a value is from what it was: `relative` is the root of the mean square of the differences over that of
    the float values, `largest` the largest difference, `decibels` the signal over the noise."""

    name: str
    relative: float
    largest: float
    node: str = ""
    op_type: str = ""

    @property
    def decibels(self) -> float:
        return math.inf if self.relative == 0 else -20 * math.log10(self.relative) if self.relative > 0 else math.nan


class _Sums:
    """What a deviation is computed from, over all feeds, in float64."""

    def __init__(self) -> None:
        self.noise = self.signal = self.largest = 0.0

    def add(self, ours: Array, reference: Array) -> None:
        if ours.shape != reference.shape:
            self.noise = math.inf  # a size that the contents give: the values cannot be compared
            return
        if ours.size == 0:
            return
        exact = reference.astype(np.float64)
        with np.errstate(invalid="ignore"):
            difference = np.where(ours == reference, 0.0, ours.astype(np.float64) - exact)
        self.noise += float(np.square(difference).sum())
        self.signal += float(np.square(exact).sum())
        self.largest = max(self.largest, float(np.abs(difference).max()))

    def deviation(self, name: str, node: ir.Node | None = None) -> Deviation:
        relative = math.sqrt(self.noise / self.signal) if self.signal > 0 else math.inf if self.noise else 0.0
        return Deviation(
            name,
            math.inf if math.isnan(relative) else relative,
            self.largest,
            "" if node is None else node.name or "",
            "" if node is None else node.op_type,
        )


def reference_outputs(
    model: str | os.PathLike[str], feeds: Sequence[Feeds], options: SessionOptions
) -> list[list[Any]]:
    """The outputs of a model for each of the feeds."""
    session = InferenceSession(os.fspath(model), options)
    return [session.run(None, dict(one)) for one in feeds]


def output_deviations(
    model: str | os.PathLike[str], feeds: Sequence[Feeds], expected: Sequence[Sequence[Any]], options: SessionOptions
) -> list[Deviation]:
    """How far each tensor among a model's outputs is from what is expected; integers are compared as numbers."""
    session = InferenceSession(os.fspath(model), options)
    names = [output.name for output in session.get_outputs()]
    sums = {name: _Sums() for name in names}
    for one, reference in zip(feeds, expected, strict=True):
        for name, ours, theirs in zip(names, session.run(None, dict(one)), reference, strict=True):
            if _is_numeric(ours) and _is_numeric(theirs):
                sums[name].add(ours, theirs)
    return [one.deviation(name) for name, one in sums.items()]


def layer_deviations(
    model: str | os.PathLike[str],
    quantized: str | os.PathLike[str],
    feeds: Sequence[Feeds],
    nodes: Iterable[str],
    options: SessionOptions,
) -> list[Deviation]:
    """How far the results of nodes of the main graph are from those of the float model, worst first.

    What comes before a node counts as well. A node whose result the quantised model has in no form is left out.
    """
    wanted = set(nodes)
    original = named_model(model).model
    known = {value.name for node in load_model(Path(quantized)).model.graph for value in node.outputs}
    places: dict[str, tuple[ir.Node, str]] = {}
    for node in original.graph:
        if (node.name or "") not in wanted:
            continue
        for value in node.outputs[:1]:
            name = value.name or ""
            found = next((name + suffix for suffix in _SUFFIXES if name + suffix in known), None)
            if name and found is not None and (value.dtype is None or value.dtype in _FLOATS):
                places[name] = node, found
    if not places:
        return []
    names, others = list(places), [found for _, found in places.values()]
    ours = InferenceSession(os.fspath(quantized), options, extra_outputs=_beside(quantized, others))
    theirs = InferenceSession(os.fspath(model), options, extra_outputs=_beside(model, names))
    sums = {name: _Sums() for name in names}
    for one in feeds:
        results = zip(names, ours.run(others, dict(one)), theirs.run(names, dict(one)), strict=True)
        for name, value, reference in results:
            if _is_numeric(value):
                sums[name].add(value, reference)
    found_all = [one.deviation(name, places[name][0]) for name, one in sums.items()]
    return sorted(found_all, key=lambda one: -one.relative)


def _beside(model: str | os.PathLike[str], names: Sequence[str]) -> list[str]:
    """Those of the values that are no outputs of the model already."""
    outputs = {value.name for value in load_model(Path(model)).model.graph.outputs}
    return [name for name in names if name not in outputs]


def worst(deviations: Sequence[Deviation]) -> float:
    """The largest relative deviation of a model's outputs."""
    if not deviations:
        raise InvalidQuantization("The model has no output that is a tensor of numbers, by which it could be judged")
    return max(one.relative for one in deviations)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, np.ndarray) and (value.dtype.kind in "fiub" or value.dtype.name == "bfloat16")
