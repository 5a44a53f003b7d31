"""A graph through torch's exporter, with the names of inputs, outputs and dimensions that it should have."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import onnx_ir as ir
import torch

from sardonyx import errors
from sardonyx.models.export.attention import exportable
from sardonyx.models.export.graphs import Call, Graph, names

_NAME = re.compile(r"[A-Za-z_]\w*")
_REASON = re.compile(r"## Exception summary\s*(.*?)(?:\(Refer to|\Z)", re.DOTALL)


class _Flat(torch.nn.Module):  # type: ignore[misc]
    """A model that takes one dictionary of tensors and gives a tuple of tensors."""

    def __init__(self, model: Any, call: Call) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(self._call(inputs).values())


def _say_equal(graph: Graph, inputs: Mapping[str, Any]) -> None:
    """Tell the tracer which dimensions are equal: it takes each of each input for a size of its own."""
    sizes: dict[str, Any] = {}
    sums = []
    for one in graph.inputs:
        for axis, dim in enumerate(one.dims):
            if isinstance(dim, int) or dim.startswith("?"):
                continue
            size = inputs[one.name].shape[axis]
            if len(names(dim)) > 1:
                sums.append((size, names(dim)))
            elif dim in sizes:
                torch._check(size == sizes[dim])
            else:
                sizes[dim] = size
    for size, parts in sums:
        torch._check(size == sum(sizes[part] for part in parts))


def to_onnx(graph: Graph, opset: int) -> ir.Model:
    """The traced graph; NotImplemented with torch's reason where it cannot be traced."""
    example = graph.example(graph.sizes[0])
    outputs: list[str] = []  # no attribute of the module: the tracer puts those back

    def call(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        _say_equal(graph, tensors)
        found = graph.call(tensors)
        outputs[:] = found
        return found

    dynamic = {
        one.name: {
            axis: torch.export.Dim.AUTO if dim.startswith("?") else torch.export.Dim.DYNAMIC
            for axis, dim in enumerate(one.dims)
            if isinstance(dim, str)
        }
        for one in graph.inputs
    }
    with exportable(), _silent(), torch.no_grad():
        try:
            program = torch.onnx.export(
                _Flat(graph.model, call).eval(),
                (),
                kwargs={"inputs": example},
                dynamic_shapes={"inputs": dynamic},
                dynamo=True,
                opset_version=opset,
                optimize=True,
                verbose=False,
            )
        except Exception as error:  # whatever a model's code raises when its sizes have no values
            raise errors.NotImplemented(
                f"{graph.file}: torch {torch.__version__} cannot export {type(graph.model).__name__}: {_reason(error)}"
            ) from error
    model: ir.Model = program.model
    _name_values(model, graph, outputs)
    _name_dimensions(model, graph, _resolved(program))
    _drop_unused_inputs(model)
    _drop_notes(model)
    model.producer_name, model.producer_version = "sardonyx", ""
    return model


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without what torch prints and warns of on the way: what matters is an error, or is checked."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _reason(error: BaseException) -> str:
    """Torch's own words, in one line."""
    found = _REASON.search(str(error))
    text = found.group(1) if found else str(error)
    text = " ".join(re.sub(r"<class '[\w.]+'>:", "", text).split())
    return text[:1000] or type(error).__name__


def _name_values(model: ir.Model, graph: Graph, outputs: list[str]) -> None:
    taken = {one.name for one in graph.inputs} | set(outputs)
    owned = {id(value) for value in (*model.graph.inputs, *model.graph.outputs)}
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if id(value) not in owned and value.name in taken:
                value.name = f"{value.name}_inside"
    for value, one in zip(model.graph.inputs, graph.inputs, strict=True):
        value.name = one.name
    for place, (value, name) in enumerate(zip(list(model.graph.outputs), outputs, strict=True)):
        if value.is_graph_input() or any(value is other for other in list(model.graph.outputs)[:place]):
            value = _copied(model, value)
            model.graph.outputs[place] = value
        value.name = name


def _copied(model: ir.Model, value: ir.Value) -> ir.Value:
    """A value of its own with the same content: an output that is an input, or another output."""
    node = ir.node("Identity", [value])
    copy = node.outputs[0]
    copy.type, copy.shape = value.type, value.shape
    model.graph.append(node)
    return copy


def _name_dimensions(model: ir.Model, graph: Graph, resolved: Mapping[str, str]) -> None:
    """Give the tracer's sizes (s46) the names of the inputs' dimensions, everywhere.

    `resolved` says what the tracer found a size to be: another, a sum of others, or a number.
    """
    known: dict[str, str] = {}
    for value, one in zip(model.graph.inputs, graph.inputs, strict=True):
        assert value.shape is not None
        for size, dim in zip(value.shape, one.dims, strict=True):
            if isinstance(dim, str) and isinstance(size, ir.SymbolicDim) and size.value is not None:
                text = _settled(str(size.value), resolved)
                if _NAME.fullmatch(text):
                    known.setdefault(text, dim.removeprefix("?"))
    named = [dim.removeprefix("?") for one in graph.inputs for dim in one.dims if isinstance(dim, str)]
    sums = {tuple(sorted(names(dim))): dim for dim in named}

    def renamed(size: int | ir.SymbolicDim) -> int | str | None:
        if isinstance(size, int) or size.value is None:
            return size if isinstance(size, int) else None
        text = _NAME.sub(lambda match: known.get(match[0], match[0]), _settled(str(size.value), resolved))
        if text.isdigit():
            return int(text)
        if re.fullmatch(r"[A-Za-z_ +]+", text):
            return sums.get(tuple(sorted(names(text))), text)
        return text if names(text) else None

    for value in _values(model):
        if value.shape is not None:
            value.shape = ir.Shape([renamed(size) for size in value.shape])


def _settled(text: str, resolved: Mapping[str, str]) -> str:
    """An expression of sizes in terms of those that stand for themselves."""
    for _ in range(len(resolved)):
        settled = _NAME.sub(lambda match: _bracketed(resolved.get(match[0], match[0])), text)
        if settled == text:
            break
        text = settled
    return text.removeprefix("(").removesuffix(")") if re.fullmatch(r"\([^()]*\)", text) else text


def _resolved(program: Any) -> dict[str, str]:
    """What the tracer found its sizes to be, where they do not stand for themselves."""
    exported = program.exported_program
    found = {
        str(symbol): str(span.lower) for symbol, span in exported.range_constraints.items() if span.lower == span.upper
    }
    for node in exported.graph.nodes:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt):
                equal = size.node.shape_env.replacements
                return {**{str(symbol): str(expression) for symbol, expression in equal.items()}, **found}
    return found


def _bracketed(dim: str) -> str:
    return f"({dim})" if " " in dim else dim


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in model.graph.all_nodes():
        yield from node.outputs


def _drop_unused_inputs(model: ir.Model) -> None:
    """Without inputs that nothing reads: a model whose positions come from elsewhere takes none."""
    outputs = {id(value) for value in model.graph.outputs}
    kept = [value for value in model.graph.inputs if value.uses() or id(value) in outputs]
    if len(kept) < len(model.graph.inputs):
        model.graph.inputs.clear()
        model.graph.inputs.extend(kept)


def _drop_notes(model: ir.Model) -> None:
    """Without torch's notes on each node: the lines of Python it comes from, with the folders of this machine."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
    for value in _values(model):
        value.metadata_props.clear()
    for value in model.graph.initializers.values():
        value.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
