"""SmoothQuant: the few large channels of activations are made smaller, and the weights that read them larger.

Source: G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models" (ICML
2023). Each channel j of what a product reads is divided by max|X_j|^alpha / max|W_j|^(1 - alpha), and the rows of its
weight are multiplied by that: the float model stays what it was but for rounding, and both are easier to quantise.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto

from sardonyx.api.session import InferenceSession
from sardonyx.graph.computed_tensor import ComputedTensor
from sardonyx.graph.constants import tensor_array
from sardonyx.graph.load import LoadedModel
from sardonyx.graph.saving import save_model, to_message
from sardonyx.quantization.job import Job
from sardonyx.quantization.options import Options
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.weight_only.moments import each_sample
from sardonyx.transformers.large_weights import load_proto

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

_PRODUCTS = frozenset({"MatMul", "Gemm"})
_LEAST = 1e-5  # of a factor
# Operators whose result is scaled by scaling constants: which inputs, of one number for each channel.
_SCALED_CONSTANTS: Mapping[str, tuple[int, ...]] = {
    "LayerNormalization": (1, 2),
    "SimplifiedLayerNormalization": (1,),
    "RMSNormalization": (1,),
}


def smooth_quant(model: ModelProto, reader: Any, alpha: float = 0.5, folding: bool = True) -> ModelProto:
    """A model that computes the same, with activations that are easier to quantise.

    `reader` is a `CalibrationDataReader` or an iterable of feeds. `alpha`, 0 to 1, says how much of the difference
    moves from activations into weights. With `folding` the division is done by what makes an activation (the scale of a
    normalisation, a Mul, the weight of a product before it) where that makes it for these products alone; otherwise a
    Mul is put in. The model that is passed stays as it is. `InvalidQuantization` for no or unfit samples.
    """
    options = Options.parse({"SmoothQuantAlpha": alpha, "SmoothQuantFolding": folding})
    return to_message(smoothed(load_proto(model), reader, options).model)


def smoothed(loaded: LoadedModel, reader: Any, options: Options, providers: Sequence[Any] | None = None) -> LoadedModel:
    """The same for a model that is loaded, which is changed, with `smooth_quant_alpha` and `smooth_quant_folding`.

    The reader can be read again afterwards: a copy of it is read.
    """
    if not any(node.op_type in _PRODUCTS for node in loaded.model.graph):
        logger.warning("SmoothQuant: the model has no MatMul and no Gemm, and stays as it is")
        return loaded
    job = Job(
        loaded,
        Options(),
        weight_type=ir.DataType.INT8,
        activation_type=ir.DataType.UINT8,
        operators=sorted(_PRODUCTS & {node.op_type for node in loaded.model.graph}),
    )
    groups = _groups(job)
    if not groups:
        logger.warning("SmoothQuant: no product has a constant weight, and the model stays as it is")
        return loaded
    largest = _largest(loaded, [value.name or "" for value in groups], _fresh(reader), providers)
    factors = {value: _factors(job, nodes, largest, options.smooth_quant_alpha) for value, nodes in groups.items()}
    for value, nodes in groups.items():
        _smooth(job, value, nodes, factors[value], options.smooth_quant_folding)
    return replace(loaded, path=None)  # its file holds what it was before


def _groups(job: Job) -> dict[ir.Value, list[ir.Node]]:
    """The products of the main graph with constant weights by what they read."""
    groups: dict[ir.Value, list[ir.Node]] = {}
    for node in job.graph:
        if node.op_type not in _PRODUCTS or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
            continue
        a, b = node.inputs[:2]
        if a is None or b is None or not job.is_constant(b) or job.is_constant(a) or not job.is_float(b):
            continue
        tensor = job.tensor(b)
        assert tensor is not None
        if len(tensor.shape) != 2 or job.attribute(node, "transA", 0) or 0 in tensor.shape.numpy():
            continue
        groups.setdefault(a, []).append(node)
    return groups


def _fresh(reader: Any) -> Any:
    """A copy of a reader, which leaves the reader itself where it is."""
    if reader is None:
        raise InvalidQuantization(
            "SmoothQuant needs samples: give a calibration_data_reader, or leave the option SmoothQuant out"
        )
    if isinstance(reader, list | tuple):
        return reader
    try:
        return copy.deepcopy(reader)
    except TypeError as error:  # a generator or an open file
        if callable(getattr(reader, "rewind", None)):
            return _Rewound(reader)
        raise InvalidQuantization(
            f"SmoothQuant reads the calibration data once more than calibration does, and the reader can't be copied "
            f"({error}): give it a method rewind(), or let it hold its samples in a list"
        ) from error


class _Rewound:
    """The samples of a reader that is taken back to its start when they have been read."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __iter__(self) -> Iterator[Any]:
        yield from each_sample(self._reader)
        self._reader.rewind()


@contextmanager
def _file_of(loaded: LoadedModel) -> Iterator[str]:
    if loaded.path is not None:
        yield str(loaded.path)
        return
    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
        path = Path(folder) / "model.onnx"
        save_model(loaded.model, path, "model.onnx.data")
        yield str(path)


def _largest(
    loaded: LoadedModel, names: Sequence[str], reader: Any, providers: Sequence[Any] | None
) -> dict[str, Array]:
    """The largest magnitude of each channel of the named values, over all samples; in float64."""
    found: dict[str, Array] = {}
    given: dict[str, Any] = {} if providers is None else {"providers": list(providers)}
    session: InferenceSession | None = None
    made: list[str] = []
    with _file_of(loaded) as path:
        for sample in each_sample(reader):
            if session is None:
                made = [name for name in names if name not in sample]
                session = InferenceSession(path, extra_outputs=made, **given)
            values = zip(made, session.run(made, sample) if made else (), strict=True)
            for name, value in (*values, *((name, sample[name]) for name in names if name not in made)):
                _raise_to(found, name, np.asarray(value))
    if session is None:
        raise InvalidQuantization("The calibration reader gives no data: it is empty, or it was read before")
    return found


def _raise_to(found: dict[str, Array], name: str, value: Array) -> None:
    size = value.shape[-1] if value.ndim else 1
    magnitudes = np.abs(value.reshape(-1, size), dtype=np.float64).max(axis=0, initial=0)
    if not np.isfinite(magnitudes).all():
        raise InvalidQuantization(
            f"The calibration data make NaN or infinite numbers of '{name}': look for such numbers in them"
        )
    known = found.get(name)
    if known is not None and known.shape != magnitudes.shape:
        raise InvalidQuantization(f"Value '{name}' has {len(known)} channels in one sample and {size} in another")
    found[name] = magnitudes if known is None else np.maximum(known, magnitudes)


def _rows_first(job: Job, node: ir.Node) -> bool:
    """Whether the channels that a product sums over are the rows of its weight."""
    return not (node.op_type == "Gemm" and job.attribute(node, "transB", 0))


def _factors(job: Job, nodes: Sequence[ir.Node], largest: Mapping[str, Array], alpha: float) -> Array:
    """What each channel is divided by; 1 for channels that are always 0, or whose weights are."""
    value = nodes[0].inputs[0]
    assert value is not None
    activation = largest[value.name or ""]
    weight = np.zeros(len(activation))
    for node in nodes:
        array = job.constant(node.inputs[1])
        assert array is not None
        magnitudes = np.abs(array).max(axis=1 if _rows_first(job, node) else 0).astype(np.float64)
        if magnitudes.shape != weight.shape:
            raise InvalidQuantization(
                f"Value '{value.name}' has {len(weight)} channels, the weight of {node.name} {len(magnitudes)}"
            )
        weight = np.maximum(weight, magnitudes)
    usable = (activation > 0) & (weight > 0)
    safe_weight, safe_activation = np.where(usable, weight, 1), np.where(usable, activation, 1)
    factors: Array = np.power(safe_activation, alpha) / np.power(safe_weight, 1 - alpha)
    return np.maximum(np.where(usable, factors, 1), _LEAST)


def _smooth(job: Job, value: ir.Value, nodes: Sequence[ir.Node], factors: Array, folding: bool) -> None:
    if (factors == 1).all():
        return
    for node in nodes:
        shape = (-1, 1) if _rows_first(job, node) else (1, -1)
        _scale(job, node, 1, factors.reshape(shape))
    is_alone = not value.is_graph_output() and all(use.node in nodes and use.idx == 0 for use in value.uses())
    if folding and is_alone and _fold(job, value, 1 / factors):
        return
    kind = job.dtype(value) or ir.DataType.FLOAT
    constant = job.initializer(f"{value.name}_smooth_scale", (1 / factors).astype(kind.numpy()))
    scaled = job.value(f"{value.name}_smooth_output", kind, job.shape(value))
    made = job.node("Mul", [value, constant], [scaled], f"{value.name}_smooth_mul")
    made.version = job.opset
    job.insert_after(value, [made])
    for node in nodes:
        node.replace_input_with(0, scaled)


def _fold(job: Job, value: ir.Value, factors: Array) -> bool:
    """Let what makes a value make it times `factors`; whether it can."""
    plan = _plan(job, value, len(factors))
    if plan is None:
        return False
    for node, index, column in plan:
        _scale(job, node, index, factors.reshape((1, -1) if column else (-1, 1)) if column is not None else factors)
    return True


# A constant to scale: whose input, and whether its channels are the columns (None: it has nothing else).
_Step = tuple[ir.Node, int, "bool | None"]


def _plan(job: Job, value: ir.Value, size: int) -> list[_Step] | None:
    """The constants that must be scaled for a value to be scaled, None where it can't be."""
    node = value.producer()
    if node is None or node.graph is not job.graph or value.is_graph_output():
        return None
    if node.op_type == "Relu" and node.inputs[0] is not None and len(node.inputs[0].uses()) == 1:
        return _plan(job, node.inputs[0], size)  # factors are positive
    if node.op_type in _SCALED_CONSTANTS and value is node.outputs[0]:
        indices = [index for index in _SCALED_CONSTANTS[node.op_type] if _given(node, index)]
        if all(_is_vector(job, node, index, size) for index in indices):
            return [(node, index, None) for index in indices]
        return None
    if node.op_type in ("Mul", "Add"):
        for index, other in ((0, 1), (1, 0)):
            if not _is_vector(job, node, index, size):
                continue
            if node.op_type == "Mul":
                return [(node, index, None)]
            summand = node.inputs[other]
            rest = None if summand is None or len(summand.uses()) != 1 else _plan(job, summand, size)
            return None if rest is None else [*rest, (node, index, None)]
        return None
    if node.op_type in _PRODUCTS and job.is_constant(node.inputs[1]):
        tensor = job.tensor(node.inputs[1])
        assert tensor is not None
        by_columns = _rows_first(job, node)
        if len(tensor.shape) != 2 or tensor.shape.numpy()[1 if by_columns else 0] != size:
            return None
        steps: list[_Step] = [(node, 1, by_columns)]
        if _given(node, 2):
            if not _is_vector(job, node, 2, size):
                return None
            steps.append((node, 2, None))
        return steps
    return None


def _given(node: ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


def _is_vector(job: Job, node: ir.Node, index: int, size: int) -> bool:
    """Whether an input is a constant of one number for each channel."""
    tensor = job.tensor(node.inputs[index])
    return tensor is not None and tuple(tensor.shape.numpy()) == (size,)


def _scale(job: Job, node: ir.Node, index: int, factors: Array) -> None:
    """Let a node read a constant times `factors`, which is computed when it is read."""
    old = node.inputs[index]
    assert old is not None
    job.settle(old)
    tensor = job.tensor(old)
    assert tensor is not None
    free = job.value_name(f"{old.name}_smoothed")
    shape = [int(size) for size in tensor.shape.numpy()]
    const = ComputedTensor(partial(_product, tensor, factors), tensor.dtype, shape, free)
    value = ir.Value(name=free, type=ir.TensorType(tensor.dtype), shape=ir.Shape(shape), const_value=const)
    job.graph.register_initializer(value)
    node.replace_input_with(index, value)
    job.release(old)


def _product(tensor: ir.TensorProtocol, factors: Array) -> Array:
    array = tensor_array(tensor)
    return np.asarray((array * factors).astype(array.dtype))
