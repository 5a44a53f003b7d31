"""The readers of models: the scan of the wire format, loading with external data, and models that name an engine."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.engines import engine_source
from sardonyx.graph import wire_format
from sardonyx.graph.context_model import DOMAIN, OPERATOR, SOURCE, context_in
from sardonyx.graph.load import load_model
from tests.robustness.fuzz import messages_of, mutate_field
from tests.robustness.guided.engines import sealed_seed
from tests.robustness.guided.target import Target, with_other_bytes
from tests.robustness.seeds import SEEDS

# What is left in place in these targets, so that small inputs get there.
_LEAST_BYTES = 128
_ALLOWED = (errors.OnnxRuntimeError,)


def _change(data: bytes, choice: random.Random) -> bytes:
    """A model with other values in one or two fields, as protobuf writes them."""
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        return with_other_bytes(data, choice)
    for _ in range(choice.choice((1, 1, 2))):
        mutate_field(model, choice)
    changed: bytes = model.SerializeToString()
    return changed


# The wire format


def _wire_seeds() -> list[bytes]:
    weights = numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")
    inner = helper.make_graph([helper.make_node("Constant", [], ["y"], value=weights)], "inner", [], [])
    node = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
    values = numpy_helper.from_array(np.arange(40, dtype=np.float32), "s")
    places = numpy_helper.from_array(np.arange(40, dtype=np.int64), "s places")
    sparse = helper.make_sparse_tensor(values, places, [100])
    graph = helper.make_graph([node], "g", [], [], [weights], sparse_initializer=[sparse])
    long = helper.make_node("Scan", [], [], numbers=list(range(200)), tensors=[weights, values], sparse=sparse)
    function = helper.make_function("d", "F", [], [], [long], [helper.make_opsetid("", 17)])
    return [
        helper.make_model(graph).SerializeToString(),
        helper.make_model(graph, functions=[function]).SerializeToString(),
    ]


def _check_wire(data: bytes, _: Path) -> bool:
    """The scan takes what protobuf takes, and together with what it left in place it is the same model."""
    whole = _parsed(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire_format, "LEAST_BYTES", _LEAST_BYTES)
        try:
            small, payloads = wire_format.split(memoryview(data))
        except errors.InvalidProtobuf:
            assert whole is None, "protobuf takes what the scan refuses"
            return False
    found = _parsed(small)
    assert (found is None) == (whole is None), "protobuf takes only one of what was given and what the scan makes of it"
    if found is None:
        return False
    for message in messages_of(found):
        if isinstance(message, TensorProto) and message.HasField("raw_data"):
            message.raw_data = bytes(payloads.find(message.raw_data))
    assert found.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)
    return True


def _parsed(data: bytes) -> Any:
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        return None


def _wire_found() -> list[bytes]:
    """Tags and lengths of data in more bytes than protobuf takes for them."""
    content = b"\1\2\3\4" * 64
    tag, length = b"\x4a", b"\x80\x02"
    found = []
    for long in (b"\xca\x80\x80\x80\x80\x00" + length, tag + b"\x80\x82\x80\x80\x80\x00"):
        tensor = long + content
        field = b"\x2a" + wire_format.varint_bytes(len(tensor)) + tensor
        found.append(b"\x3a" + wire_format.varint_bytes(len(field)) + field)
    return found


# Loading


def _load_seeds() -> list[bytes]:
    model = SEEDS["layers"]()
    for tensor in model.graph.initializer:
        if tensor.name == "w":
            size = len(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(size))):
                tensor.external_data.add(key=key, value=value)
    return [model.SerializeToString(), *(make().SerializeToString() for make in SEEDS.values())]


def _check_load(data: bytes, folder: Path) -> bool:
    """A model or a typed error, and no file but those of the folder."""
    weights = folder / "weights.bin"
    if not weights.exists():
        weights.write_bytes(np.arange(128, dtype=np.float32).tobytes())
    try:
        loaded = load_model(data, external_folder=folder)
    except _ALLOWED:
        return False
    assert all(Path(file).is_relative_to(folder.resolve()) for file in loaded.files)
    return True


# Models of one EPContext node


def _context_model(**attributes: object) -> bytes:
    node = helper.make_node(OPERATOR, ["x"], ["y"], domain=DOMAIN, source=SOURCE, **attributes)
    model: bytes = helper.make_model(helper.make_graph([node], "g", [], [])).SerializeToString()
    return model


def _context_seeds() -> list[bytes]:
    return [
        _context_model(embed_mode=1, ep_cache_context=sealed_seed()),
        _context_model(embed_mode=0, ep_cache_context=b"model.engine"),
        _context_model(embed_mode=0, ep_cache_context=b"below/model.engine"),
    ]


def _check_context(data: bytes, folder: Path) -> bool:
    """The engine, a typed error, or nothing; what the node says is what protobuf reads there."""
    if not (folder / "below").exists():
        (folder / "below").mkdir()
        for place in ("model.engine", "below/model.engine"):
            (folder / place).write_bytes(sealed_seed())
    context = context_in(memoryview(data))
    model = _parsed(data)
    if context is not None and model is not None and model.SerializeToString() == data:
        (node,) = model.graph.node
        (carried,) = [one.s for one in node.attribute if one.name == "ep_cache_context"][-1:]
        if context.embedded is not None:
            start, size = context.embedded
            assert data[start : start + size] == carried
        else:
            assert context.file.encode() == carried
    path = folder / "model.onnx"
    path.write_bytes(data)
    try:
        found = engine_source.find(str(path), ort.SessionOptions())
        again = engine_source.find(data, ort.SessionOptions()) if context and context.embedded else found
    except _ALLOWED:
        return False
    assert (found is None) == (again is None)
    return found is not None


WIRE = Target("wire", _wire_seeds, _check_wire, _change, _wire_found)
LOAD = Target("load", _load_seeds, _check_load, _change)
CONTEXT = Target("context", _context_seeds, _check_context, _change)
