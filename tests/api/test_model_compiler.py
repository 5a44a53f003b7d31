import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import errors
from tests.api.models import add_and_multiply, add_weight

WEIGHT = np.arange(3000, dtype=np.float32).reshape(1000, 3)
FLAGS = sardonyx.OrtCompileApiFlags


@pytest.fixture
def options():
    return sardonyx.SessionOptions()


def run(model, feeds):
    return sardonyx.InferenceSession(model).run(None, feeds)[0]


def test_the_model_comes_out_runnable(options, tmp_path):
    x = np.ones((2, 3), np.float32)
    compiler = sardonyx.ModelCompiler(options, add_and_multiply())
    assert run(compiler.compile_to_bytes(), {"x": x}).tolist() == (x + x).tolist()
    chunks = []
    compiler.compile_to_stream(chunks.append)
    assert b"".join(chunks) == compiler.compile_to_bytes()
    path = tmp_path / "out.onnx"
    compiler.compile_to_file(path)
    assert run(path, {"x": x}).tolist() == (x + x).tolist()


def test_the_default_path_lies_beside_the_input(options, tmp_path):
    (tmp_path / "m.onnx").write_bytes(add_and_multiply())
    sardonyx.ModelCompiler(options, tmp_path / "m.onnx").compile_to_file()
    assert (tmp_path / "m_ctx.onnx").exists()


def test_large_initializers_go_to_their_own_file(options, tmp_path):
    output = tmp_path / "out.onnx"
    compiler = sardonyx.ModelCompiler(options, add_weight(WEIGHT), external_initializers_file_path="w.bin")
    compiler.compile_to_file(output)
    (tensor,) = onnx.load(output, load_external_data=False).graph.initializer
    assert {entry.key: entry.value for entry in tensor.external_data} == {
        "location": "w.bin",
        "offset": "0",
        "length": "12000",
    }
    np.testing.assert_array_equal(run(output, {"x": np.zeros_like(WEIGHT)}), WEIGHT)


def test_the_caller_places_initializers(options):
    seen = []

    def locate(name, value, info):
        seen.append((name, value.shape(), info))
        return sardonyx.OrtExternalInitializerInfo("custom.bin", 16, value.tensor_size_in_bytes())

    compiler = sardonyx.ModelCompiler(options, add_weight(WEIGHT), get_initializer_location_func=locate)
    (tensor,) = onnx.load_model_from_string(compiler.compile_to_bytes()).graph.initializer
    assert seen == [("w", [1000, 3], None)]
    assert [entry.value for entry in tensor.external_data] == ["custom.bin", "16", "12000"]


@pytest.mark.parametrize("level", [0, 1])
def test_the_caller_knows_where_initializers_lie(tmp_path, level):
    """External ones of the input come with their place, which may be that of the output, too."""
    peer = pytest.importorskip("onnxruntime")
    model = onnx.load_model_from_string(add_weight(WEIGHT))
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    for package in (peer, sardonyx):
        seen, output = [], tmp_path / f"{package.__name__}.onnx"

        def reuse(name, value, place, seen=seen):
            seen.append((name, value.shape(), place.filepath, place.file_offset, place.byte_size))
            return place

        compiler = package.ModelCompiler(
            package.SessionOptions(),
            str(tmp_path / "m.onnx"),
            get_initializer_location_func=reuse,
            graph_optimization_level=package.GraphOptimizationLevel(level),
        )
        compiler.compile_to_file(str(output))
        assert seen == [("w", [1000, 3], "w.bin", 0, 12000)]
        (tensor,) = onnx.load(output, load_external_data=False).graph.initializer
        assert tensor.data_location == onnx.TensorProto.EXTERNAL
        assert package.InferenceSession(output).run(None, {"x": np.zeros_like(WEIGHT)})[0].tolist() == WEIGHT.tolist()


def _raise(*_):
    raise ValueError("my own words")


def test_errors_of_callers_functions_are_failures():
    peer = pytest.importorskip("onnxruntime")
    for package in (peer, sardonyx):

        def compiler(locate, package=package):
            model = add_weight(WEIGHT)
            return package.ModelCompiler(package.SessionOptions(), model, get_initializer_location_func=locate)

        for act, text in (
            (lambda make=compiler: make(None).compile_to_stream(_raise), "ValueError: my own words"),
            (lambda make=compiler: make(_raise).compile_to_bytes(), "ValueError: my own words"),
            (lambda make=compiler: make(lambda *_: 3).compile_to_bytes(), "FAIL : "),
        ):
            with pytest.raises(Exception, match=text) as error:
                act()
            assert type(error.value).__name__ == "Fail"
        with pytest.raises(TypeError):
            compiler(None).compile_to_stream(3)


def test_what_is_refused(options, tmp_path):
    compile_ = sardonyx.ModelCompiler
    model = add_and_multiply()
    with pytest.raises(ValueError, match="Input model path is empty"):
        compile_(options, "")
    with pytest.raises(ValueError, match="Input model bytes array is empty"):
        compile_(options, b"")
    with pytest.raises(TypeError, match="Unable to load from type"):
        compile_(options, 3)
    with pytest.raises(TypeError):
        compile_(None, model)
    with pytest.raises(errors.InvalidArgument, match="Input model path does not exist"):
        compile_(options, tmp_path / "nope.onnx").compile_to_bytes()
    with pytest.raises(errors.InvalidProtobuf):
        compile_(options, b"garbage").compile_to_bytes()
    with pytest.raises(errors.Fail, match="Unable to compile any nodes"):
        compile_(options, model, flags=FLAGS.ERROR_IF_NO_NODES_COMPILED).compile_to_bytes()
    with pytest.raises(errors.InvalidArgument, match="Output model path must not be empty"):
        compile_(options, model).compile_to_file("")
    with pytest.raises(errors.InvalidArgument, match="No such file or directory"):
        compile_(options, model).compile_to_file(tmp_path / "nope" / "o.onnx")
    existing = tmp_path / "existing.onnx"
    existing.write_bytes(b"")
    with pytest.raises(errors.Fail, match="exists already"):
        compile_(options, model, flags=FLAGS.ERROR_IF_OUTPUT_FILE_EXISTS).compile_to_file(existing)
    with pytest.raises(ValueError, match="Cannot initialize ModelCompiler with both"):
        compile_(options, model, external_initializers_file_path="w", get_initializer_location_func=print)
    with pytest.raises(RuntimeError, match="must not be None"):
        compile_(options, model).set_ep_context_data_write_func(None)


def test_parts_of_compiled_models():
    from sardonyx.api.options.ep_context import OrtEpContextData, OrtEpContextDataBuffer

    data = OrtEpContextData(b"abcdef")
    assert (data.size, data.read(2, 3), data.read(4)) == (6, b"cde", b"ef")
    buffer = OrtEpContextDataBuffer(8)
    buffer.allocate(4)
    buffer.write(b"xy", 1)
    assert (buffer.is_allocated, buffer.size, buffer.max_size, buffer.content()) == (True, 4, 8, b"\0xy\0")
    with pytest.raises(ValueError, match="do not fit"):
        buffer.write(b"xyz", 2)
