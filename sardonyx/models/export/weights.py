"""Files of graphs whose weights are stored once, whichever graphs read them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

# In bytes: weights of a model beyond it lie beside the model, tensors up to the other stay in it.
EXTERNAL_FROM = 128 << 20
_SMALL = 1 << 10
# Tensors begin at pages, so that a file can be mapped.
_ALIGNMENT = 4096

DATA = "model.onnx_data"


def write(models: Mapping[str, ir.Model], folder: Path, external_from: int = EXTERNAL_FROM) -> list[Path]:
    """Write graphs by file name into a folder; the files that were written.

    Weights lie in the model's own file if there is one graph and they are few; else in `model.onnx_data`, once for all
    graphs: equal ones, tied ones among them, share their bytes.
    """
    for model in models.values():
        _share(model)
    written = []
    size = sum(_bytes(model) for model in models.values())
    if len(models) > 1 or size > external_from:
        written += _move_out(models, folder)
    for name, model in models.items():
        ir.save(model, folder / name)
        written.insert(0, folder / name)
    return written


def _share(model: ir.Model) -> None:
    """One initializer for those of equal content."""
    first: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
    for value in list(model.graph.initializers.values()):
        if value.const_value is None or value.is_graph_output():
            continue
        same = first.setdefault(_content(value.const_value), value)
        if same is not value:
            ir.convenience.replace_all_uses_with(value, same)
            del model.graph.initializers[value.name or ""]


def _content(tensor: ir.TensorProtocol) -> tuple[str, tuple[int, ...], bytes]:
    return tensor.dtype.name, _sizes(tensor), hashlib.sha256(tensor.tobytes()).digest()


def _sizes(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape.numpy())


def _bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def _move_out(models: Mapping[str, ir.Model], folder: Path) -> list[Path]:
    places: dict[tuple[str, tuple[int, ...], bytes], tuple[int, int]] = {}
    path = folder / DATA
    with path.open("wb") as file:
        for model in models.values():
            for value in model.graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.nbytes <= _SMALL:
                    continue
                key = _content(tensor)
                if key not in places:
                    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                    places[key] = file.tell(), tensor.nbytes
                    file.write(tensor.tobytes())
                offset, length = places[key]
                value.const_value = ir.ExternalTensor(
                    DATA,
                    offset,
                    length,
                    tensor.dtype,
                    shape=ir.Shape(_sizes(tensor)),
                    name=value.name or "",
                    base_dir=folder,
                )
    return [path]
