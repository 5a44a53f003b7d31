"""Sessions whose products of float32 are large enough for tiles of AMX, where a machine has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.api.explaining.explanation import explain
from sardonyx.compiler.llvm.target import host_target

SHAPES = {"w1": (512, 512), "w2": (512, 600), "filters": (512, 256, 1, 1), "taps": (64, 64, 3, 3)}
INPUTS = {"x": (70, 512), "image": (1, 256, 20, 20), "wide": (1, 64, 48, 48)}


@pytest.fixture(scope="module")
def model() -> bytes:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal(SHAPES[name]).astype(np.float32), name) for name in SHAPES]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Gemm", ["h", "w2"], ["a"]),
        helper.make_node("Conv", ["image", "filters"], ["b"]),
        helper.make_node("Conv", ["wide", "taps"], ["c"], pads=[1, 1, 1, 1]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "large",
        [info(name, TensorProto.FLOAT, shape) for name, shape in INPUTS.items()],
        [info(name, TensorProto.FLOAT, None) for name in "abc"],
        weights,
    )
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    return made


def session(model: bytes, threads: int, tiles: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("sardonyx.cpu.float32_tiles", str(int(tiles)))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model: bytes, threads: int, tiles: bool = True) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in INPUTS.items()}
    return session(model, threads, tiles).run(None, feeds)


def test_any_number_of_threads_gives_the_same_bits(model: bytes) -> None:
    alone = run(model, 1)
    for threads in (2, 3, 5):
        for one, other in zip(alone, run(model, threads), strict=True):
            np.testing.assert_array_equal(one, other)


def test_results_agree_with_those_by_vectors(model: bytes) -> None:
    for one, other in zip(run(model, 1), run(model, 1, tiles=False), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * float(np.abs(other).max()))


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_explain_says_which_products_are_in_tiles(model: bytes, threads: int, tiles: bool) -> None:
    rows = explain(session(model, threads, tiles)).rows
    found = [row for row in rows if "f32 tiles" in row.detail]
    if not (tiles and host_target("").has_amx):
        assert found == []
        return
    assert {operator for row in found for operator in row.operators} == {"MatMul", "Gemm", "Conv"}
