"""Each allocation of making a session, opening an engine and running failed in turn.

What comes is a right result or a typed error; the process lives on, and the session runs once there is memory again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper, save

import sardonyx as ort
from sardonyx.api.engines.engine_compiler import compile_engine
from sardonyx.compiler.llvm.library import forget_kernels
from sardonyx.errors import OnnxRuntimeError
from tests.robustness.failing import Failing

WIDTH, INNER = 256, 4608  # weights of 4.7 MB, which lie in memory of their own
SIZES = (1, 40)

Make = Callable[[], ort.InferenceSession]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two products with a Softmax behind, and an engine of it."""
    folder = tmp_path_factory.mktemp("models")
    random = np.random.default_rng(0)
    weights = [random.standard_normal(size).astype(np.float32) / 64 for size in ((WIDTH, INNER), (INNER, WIDTH))]
    nodes = [("MatMul", "x first a"), ("Relu", "a b"), ("MatMul", "b second c"), ("Softmax", "c y")]
    graph = helper.make_graph(
        [helper.make_node(kind, names.split()[:-1], names.split()[-1:]) for kind, names in nodes],
        "two",
        [helper.make_tensor_value_info("x", 1, ["n", WIDTH])],
        [helper.make_tensor_value_info("y", 1, ["n", WIDTH])],
        [numpy_helper.from_array(*pair) for pair in zip(weights, ("first", "second"), strict=True)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    save(proto, folder / "two.onnx")
    compile_engine(str(folder / "two.onnx"), folder / "two.engine", options(), None, {"n": SIZES[0]})
    np.savez(folder / "data.npz", *weights)
    return folder


def options() -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.intra_op_num_threads = 2
    made.log_severity_level = 4
    for key, value in {
        "sardonyx.cpu.compile_threads": "0",
        "sardonyx.engine_cache": "0",
        "sardonyx.engine_trusted": "1",
    }.items():
        made.add_session_config_entry(key, value)
    return made


def check(session: ort.InferenceSession, folder: Path) -> None:
    """Run for all sizes."""
    with np.load(folder / "data.npz") as data:
        first, second = (data[name].astype(np.float64) for name in ("arr_0", "arr_1"))
    for size in SIZES:
        x = np.linspace(-1, 1, size * WIDTH, dtype=np.float32).reshape(size, WIDTH)
        scores = np.maximum(x @ first, 0) @ second
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        (result,) = session.run(None, {"x": x})
        np.testing.assert_allclose(result, powers / powers.sum(-1, keepdims=True), rtol=1e-4)


def makes(folder: Path, kind: str) -> Make:
    name = {"model": "two.onnx", "engine": "two.engine"}[kind]

    def make() -> ort.InferenceSession:
        forget_kernels()  # which are then loaded again, from the cache
        return ort.InferenceSession(str(folder / name), options())

    return make


def first_of_each(sites: list[str]) -> list[int]:
    """The numbers of those allocations that are the first ones in their places."""
    return [sites.index(site) for site in dict.fromkeys(sites)]


@pytest.mark.parametrize("stays", [False, True], ids=["one", "all from one on"])
@pytest.mark.parametrize("kind", ["model", "engine"])
def test_making_and_running(folder: Path, kind: str, stays: bool) -> None:
    make = makes(folder, kind)
    check(make(), folder)
    with Failing(-1) as allocations:
        check(make(), folder)
    kinds = {site.split()[0] for site in allocations.made}
    assert {"mmap", "code", "numpy.empty"} <= kinds
    ends: dict[str, int] = {}
    for number in first_of_each(allocations.made):
        session, said = None, ""
        with Failing(number, stays) as failing:
            try:
                session = make()
                check(session, folder)
                end = "right"
            except OnnxRuntimeError as error:
                end, said = "typed", error.message
        assert not [word for word in ("damaged", "invalid", "compile it again") if word in said], said
        ends[end] = ends.get(end, 0) + failing.has_failed
        check(session or make(), folder)
    assert ends["typed"] > 3


@pytest.mark.parametrize("kind", ["model", "engine"])
def test_running_a_session_that_is_there(folder: Path, kind: str) -> None:
    """A run of a size that it has run before, and of a new one."""
    make = makes(folder, kind)

    def ready() -> ort.InferenceSession:
        session = make()
        session.run(None, {"x": np.zeros((SIZES[0], WIDTH), np.float32)})
        return session

    session = ready()
    with Failing(-1) as allocations:
        check(session, folder)
    assert allocations.made
    for number in first_of_each(allocations.made):
        session = ready()
        with Failing(number), contextlib.suppress(OnnxRuntimeError):
            check(session, folder)
        check(session, folder)
