"""What the options about memory do, seen by the bytes that sessions hold and by the addresses of their arenas."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.runtime.memory import shared_arena
from sardonyx.runtime.memory.memory import MemoryLimitError
from tests.api.test_memory_report import LAYERS, WEIGHT_BYTES, WIDTH, layers, packed_bytes, run, session

ARENA = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
SHARED = {"session.use_env_allocators": "1"}


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    shared_arena.unregister()  # what other tests registered
    yield
    shared_arena.unregister()
    gc.collect()


def register(**values: int) -> None:
    ort.create_and_register_allocator(ARENA, ort.OrtArenaCfg(values))


def limited(nbytes: int) -> dict[str, str]:
    return {"sardonyx.memory_limit": str(nbytes)}


# A limit


def test_a_session_whose_weights_are_beyond_the_limit_is_refused() -> None:
    model = layers().SerializeToString()
    with pytest.raises(errors.Fail) as caught:
        session(model, limited(packed_bytes() // 2))
    for part in (
        *("sardonyx.memory_limit", f"limit is {packed_bytes() // 2} bytes", "weights packed for kernels"),
        "session.disable_prepacking",
    ):
        assert part in caught.value.message
    made = session(model, limited(4 * packed_bytes()))
    np.testing.assert_array_equal(run(made, 4), run(session(model), 4))


# Tiles of AMX would have weights of their own for the longer runs.
VECTORS = {"sardonyx.cpu.float32_tiles": "0"}


def test_a_run_beyond_the_limit_is_refused_and_smaller_ones_go_on() -> None:
    model = layers().SerializeToString()
    free = session(model, VECTORS)
    expected = {rows: run(free, rows) for rows in (4, 16)}
    made = session(model, limited(packed_bytes() + (4 << 20)) | VECTORS)
    for _ in range(3):
        np.testing.assert_array_equal(run(made, 4), expected[4])
    with pytest.raises(MemoryLimitError) as caught:
        run(made, 20_000)
    message = caught.value.message
    assert f"({'sardonyx.memory_limit'})" in message
    assert f"weights packed for kernels {packed_bytes()}" in message
    for _ in range(3):
        for rows, result in expected.items():
            np.testing.assert_array_equal(run(made, rows), result)
    report = made.memory_report()
    assert report.limit == packed_bytes() + (4 << 20)
    assert report.charged["weights packed for kernels"] == report.weights.packed
    assert sum(report.charged.values()) == report.weights.packed + sum(
        execution_context.nbytes for execution_context in report.execution_contexts
    )


def test_results_count_while_they_are_made() -> None:
    """An output too large for the limit is refused though the arena would do."""
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "wide",
        [info("x", TensorProto.FLOAT, [1]), info("shape", TensorProto.INT64, [1])],
        [info("y", TensorProto.FLOAT, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = session(model.SerializeToString(), limited(1 << 20))
    x = np.ones(1, np.float32)
    for size in (1000, 1 << 22, 1000):
        feeds = {"x": x, "shape": np.array([size])}
        if size > 1 << 18:
            with pytest.raises(MemoryLimitError, match=str(4 * size)):
                made.run(None, feeds)
        else:
            assert made.run(None, feeds)[0].shape == (size,)


@pytest.mark.parametrize("text", ["0", "-5", "many", "1.5"])
def test_a_limit_is_a_number_of_bytes(text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"sardonyx\.memory_limit"):
        session(layers().SerializeToString(), {"sardonyx.memory_limit": text})


# One arena for several sessions


def addresses(made: ort.InferenceSession) -> set[int]:
    return {execution_context.address for execution_context in made.memory_report().execution_contexts}


def test_sessions_that_run_one_after_the_other_share_an_arena() -> None:
    register()
    first, second = (session(layers(seed).SerializeToString(), SHARED) for seed in (1, 2))
    apart = [session(layers(seed).SerializeToString()) for seed in (1, 2)]
    for _ in range(4):
        for rows in (16, 48):
            for made, own in zip((first, second), apart, strict=True):
                np.testing.assert_array_equal(run(made, rows), run(own, rows))
    assert first.memory_report().shares_arena
    assert len(addresses(first)) == 1
    assert addresses(first) == addresses(second)
    assert not apart[0].memory_report().shares_arena
    assert addresses(apart[0]) | addresses(apart[1]) == set.union(*map(addresses, apart))
    assert len(set.union(*map(addresses, apart))) == 2
    together, separate = first.memory_report().arena, [one.memory_report().arena for one in apart]
    assert together < 2 * max(separate)  # one arena, of a power of two
    assert together & (together - 1) == 0


def test_sessions_that_run_at_the_same_time_have_different_arenas() -> None:
    register()
    first, second = (session(layers(seed).SerializeToString(), SHARED) for seed in (1, 2))
    assert first._sess is not None
    execution_contexts = shared_arena.environment_execution_contexts()
    assert execution_contexts is not None
    run(first, 16)
    with execution_contexts.execution_context() as busy:  # as a run of the first session takes it
        inside = busy.arena
        run(second, 16)
        assert {execution_context.address for execution_context in second.memory_report().execution_contexts} > {inside}
    results: dict[int, Any] = {}

    def work(number: int, made: ort.InferenceSession) -> None:
        results[number] = [run(made, rows) for rows in (8, 24, 8, 24) * 10]

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, made in enumerate((first, second)):
        for rows, result in zip((8, 24) * 20, results[number], strict=True):
            np.testing.assert_array_equal(result, run(made, rows))


def test_the_limit_of_an_arena_is_for_all_of_its_sessions() -> None:
    register(max_mem=1 << 20)
    first, second = (session(layers(seed).SerializeToString(), SHARED) for seed in (1, 2))
    small = run(first, 8)
    run(second, 8)
    for made in (first, second):
        with pytest.raises(MemoryLimitError, match="max_mem of OrtArenaCfg"):
            run(made, 5000)
    np.testing.assert_array_equal(run(first, 8), small)
    execution_contexts = shared_arena.environment_execution_contexts()
    assert execution_contexts is not None
    assert sum(execution_context.nbytes for execution_context, _ in execution_contexts.execution_contexts) <= 1 << 20


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"initial_chunk_size_bytes": 3 << 20}, 4 << 20),
        ({"initial_chunk_size_bytes": 3 << 20, "arena_extend_strategy": 1}, 3 << 20),
        ({"max_power_of_two_extend_bytes": 1024}, None),
        ({"arena_extend_strategy": 1}, None),
    ],
)
def test_how_an_arena_grows(values: dict[str, int], expected: int | None) -> None:
    register(**values)
    made = session(layers().SerializeToString(), SHARED)
    run(made, 40)
    report = made.memory_report()
    assert report.arena == (report.plans[0].arena if expected is None else expected)


@pytest.mark.parametrize("values", [{"arena_extend_strategy": 2}, {"max_mem": -1}, {"max_memory": 1}])
def test_what_is_no_way_to_grow_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(RuntimeError, match=next(iter(values))):
        register(**values)
    assert shared_arena.environment_execution_contexts() is None


def test_shrinking_gives_the_shared_arena_back() -> None:
    register()
    first, second = (session(layers(seed).SerializeToString(), SHARED) for seed in (1, 2))
    for _ in range(3):
        run(first, 16)
        run(second, 16)
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    run(second, 16, options)
    gc.collect()
    assert first.memory_report().arena == second.memory_report().arena == 0
    assert run(first, 16).shape == (16, WIDTH)


def test_without_a_registered_arena_sessions_have_their_own() -> None:
    made = session(layers().SerializeToString(), SHARED)
    run(made, 8)
    assert not made.memory_report().shares_arena
    register()
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator_v2("CPUExecutionProvider", info, {}, None)
    assert not session(layers().SerializeToString(), SHARED).memory_report().shares_arena


# Weights


@pytest.mark.parametrize("kind", ["file", "mapped", "bytes", "given"])
def test_sessions_of_one_model_share_what_they_pack(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.onnx"
    if kind == "mapped":
        onnx.save_model(layers(), path, save_as_external_data=True, location="weights", size_threshold=0)
    else:
        onnx.save(layers(), path)
    content = path.read_bytes()

    def make() -> ort.InferenceSession:
        if kind != "given":
            return session(content if kind == "bytes" else str(path))
        options = ort.SessionOptions()
        for tensor in layers().graph.initializer:
            options.add_initializer(tensor.name, ort.OrtValue.ortvalue_from_numpy(numpy_helper.to_array(tensor)))
        return ort.InferenceSession(layers(5).SerializeToString(), options)

    first = make()
    assert first.memory_report().weights.shared == 0
    second = make()
    for made in (first, second):
        weights = made.memory_report().weights
        assert weights.packed == weights.shared == packed_bytes()
    np.testing.assert_array_equal(run(first, 9), run(second, 9))
    other = session(layers(3).SerializeToString())
    assert other.memory_report().weights.shared == 0
    expected = run(first, 9)
    del first
    gc.collect()
    assert second.memory_report().weights.shared == 0
    np.testing.assert_array_equal(run(second, 9), expected)


def test_a_changed_file_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(layers(1), path)
    first = session(str(path))
    onnx.save(layers(2), path)
    second = session(str(path))
    assert second.memory_report().weights.shared == 0
    np.testing.assert_array_equal(run(second, 9), run(session(layers(2).SerializeToString()), 9))
    np.testing.assert_array_equal(run(first, 9), run(session(layers(1).SerializeToString()), 9))


def test_threads_that_make_sessions_at_once_share_or_not_but_never_mix(tmp_path: Path) -> None:
    paths = [tmp_path / f"{seed}.onnx" for seed in (1, 2)]
    for path, seed in zip(paths, (1, 2), strict=True):
        onnx.save(layers(seed), path)
    expected = [run(session(layers(seed).SerializeToString()), 6) for seed in (1, 2)]
    found: list[tuple[int, np.ndarray]] = []

    def work() -> None:
        for turn in range(6):
            which = turn % 2
            found.append((which, run(session(str(paths[which])), 6)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 24
    for which, result in found:
        np.testing.assert_array_equal(result, expected[which])


def test_without_packing_weights_are_read_as_they_lie() -> None:
    model = layers().SerializeToString()
    packed, plain = session(model), session(model, {"session.disable_prepacking": "1"})
    np.testing.assert_allclose(run(plain, 33), run(packed, 33), rtol=1e-5, atol=1e-5)
    weights = plain.memory_report().weights
    assert (weights.held, weights.packed) == (WEIGHT_BYTES, 0)
    assert packed.memory_report().weights.packed == packed_bytes()


def _convolutions() -> bytes:
    rng = np.random.default_rng(0)
    shapes = {"a": (64, 3, 3, 3), "b": (64, 1, 3, 3), "c": (96, 64, 1, 1), "d": (96, 32, 3, 3)}
    tensors = [
        numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "b"], ["3"], pads=[1, 1, 1, 1], group=64),
        helper.make_node("Conv", ["3", "c"], ["4"]),
        helper.make_node("ConvTranspose", ["4", "d"], ["y"], strides=[2, 2]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [info("x", TensorProto.FLOAT, [2, 3, 20, 20])],
        [info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def test_convolutions_without_packing_give_the_same() -> None:
    model = _convolutions()
    packed, plain = session(model), session(model, {"session.disable_prepacking": "1"})
    x = np.random.default_rng(3).standard_normal((2, 3, 20, 20)).astype(np.float32)
    for _ in range(2):
        (expected,), (found,) = packed.run(None, {"x": x}), plain.run(None, {"x": x})
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert packed.memory_report().weights.packed > 0
    assert plain.memory_report().weights.packed == 0


def test_weights_in_buffers_are_read_where_they_lie(tmp_path: Path) -> None:
    onnx.save_model(layers(), tmp_path / "model.onnx", save_as_external_data=True, location="w", size_threshold=0)
    buffer = bytearray((tmp_path / "w").read_bytes())
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_external_initializers_from_files_in_memory(["w"], [buffer], [len(buffer)])
    made = ort.InferenceSession((tmp_path / "model.onnx").read_bytes(), options)
    before = run(made, 3)
    np.frombuffer(buffer, np.float32)[:] = 0
    x = np.random.default_rng(3).standard_normal((3, WIDTH)).astype(np.float32)
    assert not np.array_equal(before, x)
    np.testing.assert_array_equal(run(made, 3), x)  # of weights that are 0 nothing is added


def test_weights_lie_outside_of_arenas() -> None:
    register(initial_chunk_size_bytes=16 << 20)
    entries = {**SHARED, "session.use_device_allocator_for_initializers": "1"}
    made = session(layers().SerializeToString(), entries)
    run(made, 16)
    assert made._sess is not None
    (step,) = made._sess.plan.steps
    places = [one.array.__array_interface__["data"][0] for one in step.call.held()]
    (execution_context,) = made.memory_report().execution_contexts
    assert len(places) == 4 * LAYERS
    assert not any(
        execution_context.address <= place < execution_context.address + execution_context.arena for place in places
    )


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the system has no large pages")
def test_arenas_and_packed_weights_ask_for_large_pages() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"], axis=0),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1024]) for name in "xy")
    weights = numpy_helper.from_array(np.ones((1024, 1024), np.float32), "w")
    graph = helper.make_graph(nodes, "wide", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = session(model.SerializeToString())
    made.run(None, {"x": np.ones((2048, 1024), np.float32)})
    assert made._sess is not None
    (step,) = made._sess.plan.steps
    packed = [one.array for one in step.call.held() if one.kind == "packed" and one.array.nbytes >= 2 << 20]
    (execution_context,) = made.memory_report().execution_contexts
    assert execution_context.arena >= 4 << 20
    assert packed
    for address in (execution_context.address, *(array.__array_interface__["data"][0] for array in packed)):
        assert "hg" in mapping_flags(address)


def mapping_flags(address: int) -> list[str]:
    """What Linux says of the mapping around an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head, *rest = line.split()
        if not head.endswith(":"):
            begin, end = (int(part, 16) for part in head.split("-"))
            inside = begin <= address < end
        elif inside and head == "VmFlags:":
            return rest
    raise AssertionError("the address lies in no mapping")


# Plans and arenas of one session


def test_without_reuse_every_value_has_bytes_of_its_own() -> None:
    model = layers().SerializeToString()
    made = session(model, enable_mem_reuse=False)
    np.testing.assert_array_equal(run(made, 64), run(session(model), 64))
    run(made, 32)
    for plan in made.memory_report().plans:
        assert plan.arena == plan.values > plan.alive


def test_without_patterns_the_plan_of_the_last_shapes_is_kept_alone() -> None:
    model = layers().SerializeToString()
    made, usual = session(model, enable_mem_pattern=False), session(model)
    for rows in (8, 16, 32, 8):
        np.testing.assert_array_equal(run(made, rows), run(usual, rows))
    assert [plan.shapes for plan in made.memory_report().plans] == [((8, WIDTH),)]
    assert len(usual.memory_report().plans) == 3


def test_without_an_arena_nothing_is_kept_after_a_run() -> None:
    made = session(layers().SerializeToString(), enable_cpu_mem_arena=False)
    run(made, 64)
    gc.collect()
    assert made.memory_report().execution_contexts == ()
    assert made.get_input_memory_infos()[0].allocator_type == ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR


def test_layers_have_weights_of_a_size_that_is_shared() -> None:
    assert WEIGHT_BYTES // (2 * LAYERS) >= 64 << 10
