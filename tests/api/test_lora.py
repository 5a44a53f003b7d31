import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx
from sardonyx.api.options import adapter_file
from tests.api.models import add_weight
from tests.robustness.guided.adapters import many_views, of_strings

PARAMETERS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array([1, 2], np.int64),
    "empty": np.zeros((0, 4), np.uint8),
}


def adapter(module, parameters, **versions):
    made = module.AdapterFormat()
    made.set_parameters({name: module.OrtValue.ortvalue_from_numpy(array) for name, array in parameters.items()})
    made.set_adapter_version(versions.get("adapter", 0))
    made.set_model_version(versions.get("model", 0))
    return made


def contents(read):
    return (
        read.get_format_version(),
        read.get_adapter_version(),
        read.get_model_version(),
        {name: (value.data_type(), value.numpy().tolist()) for name, value in read.get_parameters().items()},
    )


@pytest.mark.parametrize("parameters", [{}, PARAMETERS])
def test_files_go_both_ways_between_us_and_onnxruntime(tmp_path, parameters):
    ort = pytest.importorskip("onnxruntime")
    for writer, reader in ((sardonyx, ort), (ort, sardonyx), (sardonyx, sardonyx)):
        path = str(tmp_path / f"{writer.__name__}.onnx_adapter")
        adapter(writer, parameters, adapter=7, model=9).export_adapter(path)
        read = reader.AdapterFormat.read_adapter(path)
        expected = {
            name: (f"tensor({array.dtype.name})".replace("float32", "float"), array.tolist())
            for name, array in parameters.items()
        }
        assert contents(read) == (1, 7, 9, expected)


@pytest.mark.parametrize("content", [b"", b"he", b"hello world garbage" * 10])
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="does not appear to be a valid lora parameter format"):
        sardonyx.AdapterFormat.read_adapter(path)
    with pytest.raises(RuntimeError, match="does not appear to be a valid lora parameter format"):
        sardonyx.LoraAdapter().Load(path)


def test_every_truncation_and_every_flipped_byte_is_read_or_refused(tmp_path):
    parameters = {"b": PARAMETERS["b"]}
    whole = adapter_file.write(adapter_file.Adapter(1, 0, 0, parameters))
    data_end = len(whole) - 8
    for size in range(data_end):
        with pytest.raises(RuntimeError, match="valid lora parameter format"):
            adapter_file.read(memoryview(whole[:size]))
    refused = 0
    for index in range(len(whole)):
        broken = bytearray(whole)
        broken[index] ^= 0xFF
        try:
            adapter_file.read(memoryview(bytes(broken)))
        except RuntimeError:
            refused += 1
    assert refused > 30


def test_a_small_file_of_many_views_of_one_large_name_is_refused_at_once():
    with pytest.raises(RuntimeError, match="lies over others"):
        adapter_file.read(memoryview(many_views(8 << 20)))


def test_parameters_of_strings_are_refused_both_ways(tmp_path):
    with pytest.raises(RuntimeError, match="'name' of an adapter holds strings"):
        adapter_file.read(memoryview(of_strings()))
    with pytest.raises(RuntimeError, match="'words' of an adapter holds strings"):
        adapter(sardonyx, {"words": np.array(["a", "b"], object)}).export_adapter(tmp_path / "file")


def test_missing_files(tmp_path):
    with pytest.raises(RuntimeError, match="Cannot read the adapter file"):
        sardonyx.AdapterFormat.read_adapter(tmp_path / "nope")
    with pytest.raises(RuntimeError, match="for writing"):
        sardonyx.AdapterFormat().export_adapter(tmp_path / "nope" / "file")


def test_an_active_adapter_overrides_initializers_for_one_run(tmp_path):
    weight = np.zeros(3, np.float32)
    session = sardonyx.InferenceSession(add_weight(weight))
    path = tmp_path / "adapter"
    adapter(sardonyx, {"w": np.full(3, 5, np.float32)}).export_adapter(path)
    loaded = sardonyx.LoraAdapter()
    loaded.Load(path)
    options = sardonyx.RunOptions()
    options.add_active_adapter(loaded)
    x = np.ones(3, np.float32)
    assert session.run(None, {"x": x}, options)[0].tolist() == [6, 6, 6]
    assert session.run(None, {"x": x})[0].tolist() == [1, 1, 1]


def test_adapters_have_the_sizes_that_the_model_declares_not_those_of_its_defaults(tmp_path):
    """Adapters of any rank for a model whose own one is empty; a wrong name or size is an error."""
    peer = pytest.importorskip("onnxruntime")
    source = adapted_product()
    x = np.ones((2, 4), np.float32)
    for package in (peer, sardonyx):
        session = package.InferenceSession(source)
        assert [item.shape for item in session.get_overridable_initializers()] == [[4, "r"], ["r", 4]]
        assert session.run(None, {"x": x})[0].tolist() == [[4] * 4] * 2
        for rank in (2, 3):
            given = {"a": np.ones((4, rank), np.float32), "b": np.ones((rank, 4), np.float32)}
            expected = [[4 + 4 * rank] * 4] * 2
            options, loaded = active(package, given, tmp_path)
            assert session.run(None, {"x": x}, options)[0].tolist() == expected
            assert loaded is not None
            assert session.run(None, {"x": x, **given})[0].tolist() == expected
        assert session.run(None, {"x": x})[0].tolist() == [[4] * 4] * 2
        for wrong, text in (("q", "Invalid input name: q"), ("a", "Got invalid dimensions for input: a")):
            options, loaded = active(package, {wrong: np.ones((3, 2), np.float32)}, tmp_path)
            with pytest.raises(Exception, match=text) as error:
                session.run(None, {"x": x}, options)
            assert loaded is not None
            assert type(error.value).__name__ == "InvalidArgument"


def adapted_product() -> bytes:
    """x times ones, plus x times a times b, which have no columns and no rows of their own."""
    graph = onnx.parser.parse_graph(
        """adapted (float[n, 4] x, float[4, r] a, float[r, 4] b) => (float[n, 4] y) {
            own = MatMul(x, w)
            left = MatMul(x, a)
            more = MatMul(left, b)
            y = Add(own, more)
        }"""
    )
    for name, shape in (("w", (4, 4)), ("a", (4, 0)), ("b", (0, 4))):
        graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def active(package, parameters, folder):
    """Options of a run with an adapter of these tensors, and the adapter, which must outlive them in onnxruntime."""
    path = str(folder / "adapter")
    adapter(package, parameters).export_adapter(path)
    loaded = package.LoraAdapter()
    loaded.Load(path)
    options = package.RunOptions()
    options.add_active_adapter(loaded)
    return options, loaded
