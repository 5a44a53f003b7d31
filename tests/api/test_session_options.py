"""The properties, methods and config keys of session options."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.api.options.config_keys import CONFIG_KEYS
from tests.api import session_models as models

ADD = models.add()
ZERO = np.zeros((1, 3), np.float32)


def of_x(shape: list[str], *nodes: onnx.NodeProto) -> bytes:
    """A model from `x` to `y`, both of one shape."""
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


TWICE = of_x(["n"], helper.make_node("Add", ["x", "x"], ["y"]))
# Its intermediate results need an arena.
LARGE = of_x(
    ["n", "n"],
    helper.make_node("MatMul", ["x", "x"], ["p"]),
    helper.make_node("MatMul", ["p", "x"], ["y"]),
)

PROPERTIES = [
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "enable_profiling",
    "execution_mode",
    "execution_order",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "optimized_model_filepath",
    "profile_file_prefix",
    "use_deterministic_compute",
    "use_per_session_threads",
]
VALUES = [True, 0, 1, -3, 2**40, 1.0, None, "1", b"a", [], np.int64(3), np.bool_(True), Path("a")]


def set_and_read(package: Any, name: str, value: Any) -> str:
    options = package.SessionOptions()
    try:
        setattr(options, name, value)
    except Exception as error:
        return type(error).__name__
    return str(getattr(options, name))


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_are_those_of_onnxruntime(name: str) -> None:
    theirs = pytest.importorskip("onnxruntime")
    assert str(getattr(ort.SessionOptions(), name)) == str(getattr(theirs.SessionOptions(), name))
    for value in VALUES:
        assert set_and_read(ort, name, value) == set_and_read(theirs, name, value), f"{name} = {value!r}"


def test_enumerations_are_taken_and_read_back() -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.execution_order == ort.ExecutionOrder.PRIORITY_BASED


def test_options_are_true_closed_and_not_copied_by_others() -> None:
    options = ort.SessionOptions()
    assert options
    with pytest.raises(AttributeError):
        options.intra_op_threads = 1  # type: ignore[attr-defined]
    for copying in (copy.deepcopy, copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot pickle"):
            copying(options)


ENTRIES = [
    ("", "1"),
    ("k" * 1024, "1"),
    ("k" * 1025, "1"),
    ("k", "1" * 8192),
    ("k", "1" * 8193),
    ("k", 1),
    (1, "k"),
    (b"k", b"1"),
]


@pytest.mark.parametrize(("key", "value"), ENTRIES)
def test_config_entries_have_the_limits_of_onnxruntime(key: Any, value: Any) -> None:
    theirs = pytest.importorskip("onnxruntime")
    outcomes = []
    for package in (theirs, ort):
        options = package.SessionOptions()
        try:
            options.add_session_config_entry(key, value)
            outcomes.append(options.get_session_config_entry(key))
        except Exception as error:
            outcomes.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]


def test_config_entries_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("unknown.key", "a")
    options.add_session_config_entry("unknown.key", "b")
    assert (
        "Config with key [unknown.key] already exists with value [a]. It will be overwritten" in capfd.readouterr().err
    )
    assert options.get_session_config_entry("unknown.key") == "b"
    assert ort.InferenceSession(ADD, options).get_session_options().get_session_config_entry("unknown.key") == "b"
    with pytest.raises(RuntimeError, match="SessionOptions does not have configuration with key: zzz"):
        options.get_session_config_entry("zzz")


BAD_CONFIG = [
    ("session.dynamic_block_base", "a", ValueError),
    ("session.intra_op_thread_affinities", "foo", RuntimeError),
    ("session.qdq_matmulnbits_accuracy_level", "9", errors.Fail),
    ("session.qdq_matmulnbits_block_size", "x", errors.Fail),
    ("session.gqa_value_layout", "X", errors.InvalidArgument),
    ("session.max_shape_override", "bad", errors.Fail),
    ("optimization.minimal_build_optimizations", "x", errors.InvalidArgument),
    ("optimization.minimal_build_optimizations", "save", errors.InvalidArgument),
    ("session.graph_optimizations_loop_level", "a", errors.RuntimeException),
]


@pytest.mark.parametrize(("key", "value", "error"), BAD_CONFIG)
def test_bad_values_of_config_keys_raise_what_onnxruntime_raises(key: str, value: str, error: type[Exception]) -> None:
    theirs = pytest.importorskip("onnxruntime")
    options = theirs.SessionOptions()
    options.add_session_config_entry(key, value)
    with pytest.raises(Exception) as expected:  # noqa: PT011 - the class is compared below
        theirs.InferenceSession(ADD, options, enable_fallback=0)
    assert type(expected.value).__name__ == error.__name__
    options = ort.SessionOptions()
    options.add_session_config_entry(key, value)
    with pytest.raises(error, match=key):
        ort.InferenceSession(ADD, options, enable_fallback=0)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("session.intra_op.spin_duration_us", "x", 'Invalid value for session.intra_op.spin_duration_us: "x"'),
        ("session.set_denormal_as_zero", "true", "counts as off"),
        ("session.load_model_format", "xx", "using default setting"),
    ],
)
def test_harmless_values_are_reported(key: str, value: str, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(key, value)
    ort.InferenceSession(ADD, options)
    assert text in capfd.readouterr().err


@pytest.mark.parametrize(
    ("key", "wish"),
    [
        ("sardonyx.engine_cahce", "did you mean sardonyx.engine_cache?"),
        ("sardonyx.cpu.precison", "did you mean sardonyx.cpu.precision?"),
        ("session.intra_op.allow_spining", "did you mean session.intra_op.allow_spinning?"),
        ("Session.Set_Denormal_As_Zero", "did you mean session.set_denormal_as_zero?"),
        ("sardonyx.unheard_of", "docs/session.md lists those that have one"),
    ],
)
def test_slips_in_config_keys_are_reported(key: str, wish: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(key, "0")
    ort.InferenceSession(ADD, options)
    (line,) = capfd.readouterr().err.splitlines()
    assert f"the session config key {key} has no effect: {wish}" in line
    assert options.get_session_config_entry(key) == "0"


@pytest.mark.parametrize("key", ["ep.another.option", "my.own.key", "session.of_a_later_version"])
def test_keys_of_others_are_kept_silently(key: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(key, "0")
    ort.InferenceSession(ADD, options)
    assert capfd.readouterr().err == ""


def test_good_values_of_config_keys_are_taken_silently(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 3  # the caller and two workers
    good = {"number": "1", "boolean": "1"}
    left_out = {
        "ep.context_enable",
        "session.disable_cpu_ep_fallback",
        "session.load_model_format",
        "session.save_model_format",
    }
    for key in CONFIG_KEYS.values():
        if key.name not in left_out:
            value = {
                "session.intra_op_thread_affinities": "1,2;3-4",
                "session.max_shape_override": "x:[8,3]",
                "optimization.disable_specified_optimizers": "ConstantFolding;MatMulAddFusion",
                "sardonyx.cpu.batch_items": "4",
                "sardonyx.cpu.compile_threads": "2",
                "session.collect_node_memory_stats_to_file": str(tmp_path / "memory.csv"),
                "sardonyx.external_data_folders": str(tmp_path),
            }.get(key.name, key.choices[-1] if key.choices else good.get(key.kind, "text"))
            options.add_session_config_entry(key.name, value)
    session = ort.InferenceSession(ADD, options)
    np.testing.assert_array_equal(session.run(None, {"x": ZERO, "y": ZERO})[0], ZERO)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("threads", "text"), [(3, "1"), (2, "1;2"), (4, "1;1-2")])
def test_there_is_an_affinity_for_each_worker(threads: int, text: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    messages = []
    for package in (ort, peer):
        options = package.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op_thread_affinities", text)
        with pytest.raises(RuntimeError, match="Number of affinities") as caught:
            package.InferenceSession(ADD, options, providers=["CPUExecutionProvider"])
        messages.append(str(caught.value))
    assert messages[1].strip().endswith(messages[0])


@pytest.mark.parametrize(("threads", "text"), [(1, "1"), (3, "1;1"), (2, "1-2")])
def test_affinities_that_fit_or_bind_nobody(threads: int, text: str) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op_thread_affinities", text)
    (result,) = ort.InferenceSession(ADD, options).run(None, {"x": ZERO, "y": ZERO})
    np.testing.assert_array_equal(result, ZERO)


@pytest.mark.parametrize("text", ["0", "2-1"])
def test_processors_count_from_one(text: str) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op_thread_affinities", text)
    with pytest.raises(RuntimeError, match="count from 1"):
        ort.InferenceSession(ADD, options)


def test_what_the_options_say_of_threads_and_memory_arrives() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.enable_cpu_mem_arena = False
    for key, value in (
        ("session.force_spinning_stop", "1"),
        ("session.set_denormal_as_zero", "1"),
        ("session.intra_op.spin_duration_us", "7"),
    ):
        options.add_session_config_entry(key, value)
    native = native_steps(ort.InferenceSession(LARGE, options))
    assert native.thread_pool.options.stop_after_run
    assert native.thread_pool.options.spin_seconds == 7e-6
    assert native.execution_contexts.nbytes == 0
    kept = native_steps(ort.InferenceSession(LARGE))
    assert not kept.thread_pool.options.stop_after_run


def native_steps(session: ort.InferenceSession) -> Any:
    """What the native steps of a session share, after two runs."""
    array = np.ones((64, 64), np.float32)
    for _ in range(2):
        session.run(None, {"x": array})
    (provider,) = session._sess._memory_owners  # type: ignore[union-attr]
    return provider._resources


def test_memory_between_runs_is_kept_unless_told() -> None:
    session = ort.InferenceSession(LARGE)
    native = native_steps(session)
    array = np.ones((64, 64), np.float32)
    session.run(None, {"x": array}, ort.RunOptions())
    assert native.execution_contexts.nbytes > array.nbytes
    once = ort.RunOptions()
    once.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    (shrunk,) = session.run(None, {"x": array}, once)
    assert native.execution_contexts.nbytes == 0
    np.testing.assert_array_equal(session.run(None, {"x": array})[0], shrunk)


def test_denormal_numbers_are_numbers_unless_told() -> None:
    tiny = np.array([1e-40, -1e-42, 1.0, 0.0], np.float32)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    for _ in range(3):
        np.testing.assert_array_equal(ort.InferenceSession(TWICE).run(None, {"x": tiny})[0], tiny + tiny)
        flushing = ort.InferenceSession(TWICE, options)
        for _ in range(3):
            np.testing.assert_array_equal(flushing.run(None, {"x": tiny})[0], np.array([0, 0, 2, 0], np.float32))
            np.testing.assert_array_equal(tiny + tiny, tiny * np.float32(2))  # the caller's arithmetic is as before
            assert (tiny + tiny)[0] != 0


def test_a_compiled_model_needs_a_place(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    with pytest.raises(errors.InvalidArgument, match="Both ep_context_path and model_path are empty"):
        ort.InferenceSession(ADD, options)
    path = tmp_path / "model.onnx"
    path.write_bytes(ADD)
    assert ort.InferenceSession(path, options).get_inputs()[0].name == "x"


def test_the_table_of_keys_is_consistent() -> None:
    for name, key in CONFIG_KEYS.items():
        assert name == key.name
        assert key.doc
        assert key.state in ("works", "accepted")
        if key.kind == "boolean":
            assert key.default in ("0", "1")
        if key.choices:
            assert key.default in key.choices


def test_free_dimensions_by_name() -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("b", 5)
    options.add_free_dimension_override_by_name("nobody", 7)
    session = ort.InferenceSession(ADD, options)
    assert [item.shape for item in (*session.get_inputs(), *session.get_outputs())] == [[5, 3]] * 3
    with pytest.raises(errors.InvalidArgument, match="index: 0 Got: 1 Expected: 5"):
        session.run(None, {"x": ZERO, "y": ZERO})
    with pytest.raises(TypeError):
        options.add_free_dimension_override_by_name("b", "5")  # type: ignore[arg-type]


def test_free_dimensions_by_denotation() -> None:
    message = onnx.load_model_from_string(ADD)
    message.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 4)
    assert ort.InferenceSession(message, options).get_inputs()[0].shape == [4, 3]


def test_free_dimensions_by_several_denotations() -> None:
    peer = pytest.importorskip("onnxruntime")
    message = onnx.load_model_from_string(models.identity(onnx.TensorProto.FLOAT, ["a", "b", "c", 2]))
    for dim, name in zip(message.graph.input[0].type.tensor_type.shape.dim, "DEF", strict=False):
        dim.denotation = name
    for package in (peer, ort):
        options = package.SessionOptions()
        for number, denotation in enumerate("DEF"):
            options.add_free_dimension_override_by_denotation(denotation, 4 + number)
        options.add_free_dimension_override_by_name("a", 4)
        session = package.InferenceSession(message.SerializeToString(), options)
        assert [item.shape for item in (*session.get_inputs(), *session.get_outputs())] == [[4, 5, 6, 2]] * 2
        options.add_free_dimension_override_by_name("b", 7)
        with pytest.raises(Exception, match="Conflicting free dimension overrides") as error:
            package.InferenceSession(message.SerializeToString(), options)
        assert type(error.value).__name__ == "InvalidArgument"


def test_a_name_is_given_one_value() -> None:
    peer = pytest.importorskip("onnxruntime")
    for package in (peer, ort):
        value = package.OrtValue.ortvalue_from_numpy(ZERO)
        options = package.SessionOptions()
        for add in (
            lambda options=options, value=value: options.add_initializer("w", value),
            lambda options=options, value=value: options.add_external_initializers(["w"], [value]),
            lambda options=options: options.add_external_initializers_from_files_in_memory(["w.bin"], [b"1"], [1]),
        ):
            add()
            with pytest.raises(RuntimeError, match="already"):
                add()


def with_initializer(array: np.ndarray, name: str = "w") -> Any:
    options = ort.SessionOptions()
    options.add_initializer(name, ort.OrtValue.ortvalue_from_numpy(array))
    return ort.InferenceSession(models.add_weights(), options).run(None, {"x": ZERO})[0].tolist()


def test_initializers_may_be_given() -> None:
    assert with_initializer(np.full(3, 7, np.float32)) == [[7, 7, 7]]
    assert with_initializer(np.full(3, 7, np.float32), "nobody") == [[1, 2, 3]]
    with pytest.raises(errors.InvalidArgument, match=r"initializer w has element type double"):
        with_initializer(np.full(3, 7, np.float64))
    with pytest.raises(RuntimeError, match="must be an OrtValue"):
        ort.SessionOptions().add_initializer("w", ZERO)  # type: ignore[arg-type]


def external_model() -> bytes:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[3], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    return models.model(
        [helper.make_node("Add", ["x", "w"], ["z"], name="add0")],
        [models.value("x", models.FLOAT, ["b", 3])],
        [models.value("z", models.FLOAT, None)],
        [tensor],
    ).SerializeToString()


def with_external(source: bytes, array: np.ndarray, name: str = "w") -> Any:
    options = ort.SessionOptions()
    options.add_external_initializers([name], [ort.OrtValue.ortvalue_from_numpy(array)])
    return ort.InferenceSession(source, options).run(None, {"x": ZERO})[0].tolist()


def test_external_initializers_may_be_given() -> None:
    seven = np.full(3, 7, np.float32)
    assert with_external(external_model(), seven) == [[7, 7, 7]]
    for source, array, name, text in (
        (models.add_weights(), seven, "w", "Trying to replace non-external initializer"),
        (external_model(), seven, "q", "Failed to find existing initializer with name q"),
        (external_model(), np.zeros(4, np.float32), "w", "Replacement tensor's dimensions do not match"),
    ):
        with pytest.raises(errors.Fail, match=text):
            with_external(source, array, name)
    with pytest.raises(RuntimeError, match="equal length"):
        ort.SessionOptions().add_external_initializers(["w"], [])


def test_external_files_may_be_in_memory() -> None:
    content = np.full(3, 7, np.float32).tobytes()
    for buffer in (content, bytearray(content), memoryview(content)):
        options = ort.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["w.bin"], [buffer], [len(content)])
        assert ort.InferenceSession(external_model(), options).run(None, {"x": ZERO})[0].tolist() == [[7, 7, 7]]
    options = ort.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [content], [4])
    with pytest.raises(errors.Fail, match="out of bounds"):
        ort.InferenceSession(external_model(), options)
    with pytest.raises(RuntimeError, match="equal length"):
        options.add_external_initializers_from_files_in_memory(["w.bin"], [content], [])


def test_the_folder_of_external_data(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.full(3, 7, np.float32).tobytes())
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    assert ort.InferenceSession(external_model(), options).run(None, {"x": ZERO})[0].tolist() == [[7, 7, 7]]
    with pytest.raises(errors.Fail, match="External data path"):
        ort.InferenceSession(external_model())


def contradictory() -> bytes:
    return models.model(
        [helper.make_node("Relu", ["x"], ["z"], name="r")],
        [models.value("x", models.FLOAT, ["b", 3])],
        [models.value("z", models.FLOAT, ["b", 5])],
    ).SerializeToString()


def test_contradictory_shapes_are_errors_only_where_strict(capfd: pytest.CaptureFixture[str]) -> None:
    ort.InferenceSession(contradictory())
    assert (
        "Error merging shape info for output. 'z' source:{-1,3} target:{-1,5}. Falling back" in capfd.readouterr().err
    )
    options = ort.SessionOptions()
    options.add_session_config_entry("session.strict_shape_type_inference", "1")
    with pytest.raises(errors.Fail, match=r"Node:r Output:z .*Inferred=3 Declared=5 Dimension=1"):
        ort.InferenceSession(contradictory(), options)


def test_optimizers_are_left_out() -> None:
    def changed(options: ort.SessionOptions, **keywords: Any) -> set[str]:
        session = ort.InferenceSession(ADD, options, **keywords)
        return {report.name for report in session._sess.passes}

    options = ort.SessionOptions()
    assert {"ConstantFolding", "EliminateIdentity"} <= changed(options)
    assert "ConstantFolding" not in changed(options, disabled_optimizers=["ConstantFolding"])
    options.add_session_config_entry("optimization.disable_specified_optimizers", "EliminateIdentity, ConstantFolding")
    assert not {"ConstantFolding", "EliminateIdentity"} & changed(options)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert changed(options) == set()


def test_loading_can_be_cancelled() -> None:
    options = ort.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(errors.ModelLoadCanceled):
        ort.InferenceSession(ADD, options)
    options.set_load_cancellation_flag(False)
    assert ort.InferenceSession(ADD, options).get_inputs()[0].name == "x"


def test_libraries_of_operators_are_refused() -> None:
    with pytest.raises(errors.Fail, match=r"Failed to load library nope\.so with error: nope\.so"):
        ort.SessionOptions().register_custom_ops_library("nope.so")


def test_providers_on_options() -> None:
    options = ort.SessionOptions()
    assert not options.has_providers()
    with pytest.raises(RuntimeError, match="Unknown Provider Type: Foo"):
        options.add_provider("Foo", {})
    with pytest.raises(errors.InvalidArgument, match="Failed to add provider of type 'CUDAExecutionProvider'"):
        options.add_provider("CUDAExecutionProvider", {})
    options.add_provider_for_devices(ort.get_ep_devices()[:1], {})
    assert options.has_providers()
    with pytest.raises(errors.InvalidArgument, match="devices of one provider"):
        options.add_provider_for_devices([], {})
    with pytest.raises(TypeError):
        options.set_provider_selection_policy(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        options.set_ep_context_data_read_func(1)  # type: ignore[arg-type]
    options.set_ep_context_data_read_func(print)
    options.clear_ep_context_data_read_func()


def test_ort_format_is_not_written(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    with pytest.raises(errors.NotImplemented, match="ORT format"):
        ort.InferenceSession(ADD, options)


def saving(path: Path) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    return options


def test_the_optimised_model_is_written(tmp_path: Path) -> None:
    path = tmp_path / "optimised.onnx"
    ort.InferenceSession(models.add_weights(), saving(path))
    assert ort.InferenceSession(path).run(None, {"x": ZERO})[0].tolist() == [[1, 2, 3]]
    onnx.checker.check_model(str(path))


def test_its_weights_may_go_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "optimised.onnx"
    options = saving(path)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1")
    ort.InferenceSession(models.add_weights(), options)
    assert (tmp_path / "weights.bin").stat().st_size >= 12
    assert ort.InferenceSession(path).run(None, {"x": ZERO})[0].tolist() == [[1, 2, 3]]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="SystemError : 2"):
        ort.InferenceSession(ADD, saving(tmp_path / "no" / "model.onnx"))


ROOT = Path(__file__).parents[2]
# What a session config key looks like in the code; names of run options begin otherwise.
KEY = re.compile(
    r"\"((?:session|optimization|ep|sardonyx\.cpu|sardonyx(?=\.(?:engine|memory|external|caches|last|use|greedy)_))\.[a-z0-9_.]+)\""
)


def test_the_page_lists_every_key_and_no_other() -> None:
    rows = re.findall(r"^\| `(?:session|optimization|ep|sardonyx)\..*$", (ROOT / "docs/session.md").read_text(), re.M)
    defaults = {key.name: f"`{key.default}`" if key.default else "none" for key in CONFIG_KEYS.values()}
    assert rows == [
        f"| `{key.name}` | {key.kind} | {defaults[key.name]} | {key.state} | {key.doc} |"
        for key in CONFIG_KEYS.values()
    ]


def test_the_code_reads_the_keys_that_work_and_no_others() -> None:
    sources = [path for path in (ROOT / "sardonyx").rglob("*.py") if path.name != "config_keys.py"]
    read = {name for path in sources for name in KEY.findall(path.read_text())}
    # Products of bytes never saturate, and weights never lie in arenas.
    true_in_any_case = {"session.x64quantprecision", "session.use_device_allocator_for_initializers"}
    assert read | true_in_any_case == {key.name for key in CONFIG_KEYS.values() if key.state == "works"}
    assert not read & true_in_any_case


def test_the_tensor_of_a_constant_says_its_shape(capfd: pytest.CaptureFixture[str]) -> None:
    """Builders declare a constant to be a scalar which is none: there is nothing to tell of it."""
    one = onnx.numpy_helper.from_array(np.ones(1, np.float32))
    node = helper.make_node("Constant", [], ["one"], value=one)
    graph = helper.make_graph(
        [node, helper.make_node("Add", ["x", "one"], ["y"])],
        "constant",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        value_info=[helper.make_tensor_value_info("one", onnx.TensorProto.FLOAT, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    for strict in ("0", "1"):
        options = ort.SessionOptions()
        options.add_session_config_entry("session.strict_shape_type_inference", strict)
        session = ort.InferenceSession(model.SerializeToString(), options)
        assert session.run(None, {"x": np.zeros(2, np.float32)})[0].tolist() == [1, 1]
    assert "merging shape info" not in capfd.readouterr().err
