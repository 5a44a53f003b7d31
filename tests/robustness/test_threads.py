"""Sessions with native code under many threads, many runs, and ends that come early."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx import errors

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEADS = 48, 4
PATIENCE = 180.0


def encoder_layer() -> bytes:
    """A layer of a transformer encoder over [batch, length, 48], with attention, GELU and normalisations."""
    rng = np.random.default_rng(5)
    weights: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        array = rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
        weights.append(numpy_helper.from_array(array, name))
        return name

    def numbers(name: str, *values: int) -> str:
        weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    nodes: list[Any] = []

    def add(op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type}_{len(nodes)}"
        nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def dense(value: str, rows: int, columns: int) -> str:
        place = len(nodes)
        product = add("MatMul", value, weight(f"w{place}", rows, columns))
        return add("Add", product, weight(f"b{place}", columns))

    def heads(value: str, *order: int) -> str:
        split = add("Reshape", value, "split")
        return add("Transpose", split, perm=order)

    numbers("split", 0, 0, HEADS, WIDTH // HEADS)
    numbers("join", 0, 0, WIDTH)
    q, k, v = (dense("x", WIDTH, WIDTH) for _ in range(3))
    scores = add("MatMul", heads(q, 0, 2, 1, 3), heads(k, 0, 2, 3, 1))
    weights.append(numpy_helper.from_array(np.array(0.25, np.float32), "scale"))
    probabilities = add("Softmax", add("Mul", scores, "scale"), axis=-1)
    mixed = add("Transpose", add("MatMul", probabilities, heads(v, 0, 2, 1, 3)), perm=(0, 2, 1, 3))
    attended = add("Add", dense(add("Reshape", mixed, "join"), WIDTH, WIDTH), "x")
    normal = add("LayerNormalization", attended, weight("g1", WIDTH), weight("h1", WIDTH))
    wide = add("Gelu", dense(normal, WIDTH, 4 * WIDTH))
    out = add("Add", dense(wide, 4 * WIDTH, WIDTH), normal)
    nodes.append(helper.make_node("LayerNormalization", [out, weight("g2", WIDTH), weight("h2", WIDTH)], ["y"]))
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", WIDTH])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


LAYER = encoder_layer()


def session(threads: int = 2, model: bytes = LAYER) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options)


def given(batch: int, length: int) -> Array:
    return np.random.default_rng(100 * batch + length).standard_normal((batch, length, WIDTH)).astype(np.float32)


SHAPES = [(1, 1), (1, 7), (2, 16), (3, 33), (1, 128), (4, 5)]


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, int], Array]:
    """What one thread computes."""
    alone = session(1)
    return {shape: alone.run(None, {"x": given(*shape)})[0] for shape in SHAPES}


def all_of(work: Callable[[int], None], count: int) -> None:
    """Do `work` in as many threads at once; the first error is raised."""
    start = threading.Barrier(count)

    def one(number: int) -> None:
        start.wait(PATIENCE)
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(one, number) for number in range(count)]:
            future.result(PATIENCE)


def test_it_is_what_onnxruntime_computes(expected: dict[tuple[int, int], Array]) -> None:
    peer = pytest.importorskip("onnxruntime")
    theirs = peer.InferenceSession(LAYER, providers=["CPUExecutionProvider"])
    for shape, result in expected.items():
        np.testing.assert_allclose(result, theirs.run(None, {"x": given(*shape)})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same_bits(threads: int, expected: dict[tuple[int, int], Array]) -> None:
    made = session(threads)
    for _ in range(3):
        for shape, result in expected.items():
            np.testing.assert_array_equal(made.run(None, {"x": given(*shape)})[0], result)


def test_sixteen_threads_run_one_session(expected: dict[tuple[int, int], Array]) -> None:
    made = session(2)

    def work(number: int) -> None:
        for turn in range(12):
            shape = SHAPES[(number + turn // 3) % len(SHAPES)]
            np.testing.assert_array_equal(made.run(None, {"x": given(*shape)})[0], expected[shape])

    all_of(work, 16)


def test_threads_meet_new_lengths_at_once() -> None:
    alone, made = session(1), session(1)
    lengths = range(1, 41)
    expected = {length: alone.run(None, {"x": given(1, length)})[0] for length in lengths}

    def work(number: int) -> None:
        for length in np.random.default_rng(number).permutation(lengths).tolist():
            np.testing.assert_array_equal(made.run(None, {"x": given(1, length)})[0], expected[length])

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        all_of(work, 4)
    finally:
        sys.setswitchinterval(interval)


def test_eight_sessions_run_at_once(expected: dict[tuple[int, int], Array]) -> None:
    made = [session(1 + number % 3) for number in range(8)]

    def work(number: int) -> None:
        for turn in range(12):
            shape = SHAPES[(number + turn) % len(SHAPES)]
            np.testing.assert_array_equal(made[number].run(None, {"x": given(*shape)})[0], expected[shape])

    all_of(work, 8)


def test_sessions_come_and_go_while_others_run(expected: dict[tuple[int, int], Array]) -> None:
    kept = session(2)

    def work(number: int) -> None:
        for turn in range(6):
            own = kept if number % 2 else session(2)
            shape = SHAPES[(number + turn) % len(SHAPES)]
            np.testing.assert_array_equal(own.run(None, {"x": given(*shape)})[0], expected[shape])
            del own

    all_of(work, 4)
    gc.collect()
    np.testing.assert_array_equal(kept.run(None, {"x": given(2, 16)})[0], expected[2, 16])


def test_many_runs_in_the_background(expected: dict[tuple[int, int], Array]) -> None:
    made = session(3)
    done = threading.Semaphore(0)
    found: list[tuple[Any, Any, str]] = []

    def told(results: list[Any], user_data: Any, problem: str) -> None:
        found.append((results, user_data, problem))
        done.release()

    for turn in range(24):
        shape = SHAPES[turn % len(SHAPES)]
        made.run_async(None, {"x": given(*shape)}, told, shape)
    for _ in range(24):
        assert done.acquire(timeout=PATIENCE)
    assert [problem for _, _, problem in found] == [""] * 24
    for results, shape, _ in found:
        np.testing.assert_array_equal(results[0], expected[shape])


def test_threads_that_ran_may_end(expected: dict[tuple[int, int], Array]) -> None:
    made = session(2)
    for _ in range(20):
        thread = threading.Thread(target=made.run, args=(None, {"x": given(3, 33)}))
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    np.testing.assert_array_equal(made.run(None, {"x": given(3, 33)})[0], expected[3, 33])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell how large a process is")
def test_ten_thousand_runs_take_no_more_memory(expected: dict[tuple[int, int], Array]) -> None:
    made = session(2)
    small = {"x": given(1, 7)}
    others = [{"x": given(*shape)} for shape in SHAPES]

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def some(count: int) -> None:
        for turn in range(count):
            made.run(None, small)
            if turn % 50 == 0:
                made.run(None, others[turn // 50 % len(others)])

    some(500)
    before = resident()
    some(10_000)
    assert resident() - before < 4 << 20


HEAVY_SIZE, HEAVY_COUNT = 768, 400


def heavy() -> bytes:
    """Matrix products one after the other that take many seconds together."""
    nodes, last = [], "x"
    for number in range(HEAVY_COUNT):
        nodes.append(helper.make_node("MatMul", [last, "x"], [f"p{number}"]))
        last = f"p{number}"
    nodes.append(helper.make_node("Relu", [last], ["y"]))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "n"]) for name in "xy"]
    graph = helper.make_graph(nodes, "heavy", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_native_run_is_terminated(threads: int) -> None:
    made = session(threads, heavy())
    assert [step.kind for step in made._sess.plan.steps] == ["segment"]  # type: ignore[union-attr]
    matrix = np.eye(HEAVY_SIZE, dtype=np.float32)
    options = ort.RunOptions()
    started, caught = threading.Event(), []

    def run() -> None:
        started.set()
        try:
            while True:  # should the other thread get no processor while a run lasts
                made.run(None, {"x": matrix}, options)
        except errors.Fail as error:
            caught.append(error.message)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(PATIENCE)
    time.sleep(0.1)
    options.terminate = True
    thread.join(PATIENCE)
    assert caught == ["Exiting due to terminate flag being set to true."]
    small = np.eye(8, dtype=np.float32)
    with pytest.raises(errors.Fail, match="terminate flag"):
        made.run(None, {"x": small}, options)
    options.terminate = False
    np.testing.assert_array_equal(made.run(None, {"x": small}, options)[0], small)


def program(text: str) -> subprocess.CompletedProcess[str]:
    """A Python program of its own, which has `made`, `given` and `ort`."""
    head = """
        import os, threading, time
        import numpy as np
        import sardonyx as ort
        from tests.robustness.test_threads import given, heavy, session, HEAVY_SIZE
    """
    code = textwrap.dedent(head) + textwrap.dedent(text)
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize(
    "text",
    [
        # Sessions that still exist, in globals and in a cycle, when the interpreter ends.
        "made = session(3); made.me = made; made.run(None, {'x': given(2, 16)}); print('ran')",
        # A thread that is not waited for runs while the interpreter ends.
        """
        made = session(2, heavy())
        matrix = np.eye(HEAVY_SIZE, dtype=np.float32)
        threading.Thread(target=made.run, args=(None, {'x': matrix}), daemon=True).start()
        time.sleep(0.2)
        print('ran')
        """,
        # The session goes while its workers still spin.
        """
        for _ in range(30):
            made = session(2)
            made.run(None, {'x': given(3, 33)})
            del made
        print('ran')
        """,
        # A child that ends at once, and one that ends as programs do.
        """
        made = session(3)
        made.run(None, {'x': given(3, 33)})
        for leave in (os._exit, exit):
            child = os.fork()
            if child == 0:
                made.run(None, {'x': given(3, 33)})
                leave(0)
            assert os.waitpid(child, 0)[1] == 0
        made.run(None, {'x': given(3, 33)})
        print('ran')
        """,
    ],
    ids=["objects left", "thread left", "workers spin", "children"],
)
def test_the_end_of_the_interpreter(text: str) -> None:
    if "fork" in text and not hasattr(os, "fork"):
        pytest.skip("the system does not fork")
    done = program(text)
    assert (done.returncode, done.stdout.strip()) == (0, "ran"), done.stderr
