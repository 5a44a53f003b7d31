"""Compiled models in ONNX: sessions that write them, the compiler's class, and loading them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import sardonyx as ort
from sardonyx import errors
from sardonyx.compiler.llvm.library import forget_kernels, library
from sardonyx.graph.context_model import Context, context_in
from tests.api.engine_models import IDS, expected, write_model


@pytest.fixture(autouse=True, scope="module")
def _trust_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where the trust records of these tests are; their kernels come from where all tests have them."""
    forget_kernels()
    for purpose in ("models", "runtime"):
        library(purpose=purpose)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SARDONYX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    constants = write_model(tmp_path / "model.onnx")
    return tmp_path / "model.onnx", constants


def with_entries(**entries: str) -> ort.SessionOptions:
    """Options with entries whose keys have a dot in place of the first underscore, and this test's profile."""
    options = ort.SessionOptions()
    options.add_session_config_entry("sardonyx.engine_profiles", "ids:1,7,64")
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("_", ".", 1), value)
    return options


def check(source: Path | bytes, constants: dict[str, np.ndarray], options: ort.SessionOptions | None = None) -> None:
    """The session of a compiled model begins from its engine, and gives what the model does."""
    made = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    assert made._session()._is_stored
    for count in (7, 30):
        y, _ = made.run(None, {"ids": IDS[:count]})
        np.testing.assert_allclose(y, expected(constants, IDS[:count]), rtol=1e-4, atol=1e-4)


def the_node(path: Path) -> onnx.NodeProto:
    (node,) = onnx.load(path, load_external_data=False).graph.node
    return node


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def test_a_session_writes_its_compiled_model(model: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    path, constants = model
    made = ort.InferenceSession(path, with_entries(ep_context_enable="1"))
    (y, _) = made.run(None, {"ids": IDS[:7]})
    np.testing.assert_allclose(y, expected(constants, IDS[:7]), rtol=1e-4, atol=1e-4)
    written = tmp_path / "model_ctx.onnx"
    node = the_node(written)
    assert (node.op_type, node.domain, list(node.input), list(node.output)) == (
        "EPContext",
        "com.microsoft",
        ["ids"],
        ["y", "most"],
    )
    found = attributes(node)
    assert (found["embed_mode"], found["main_context"], found["source"]) == (0, 1, b"Sardonyx")
    assert found["ep_cache_context"] == b"model_ctx.engine"
    path.unlink()
    check(written, constants)
    onnx.checker.check_model(onnx.load(written), full_check=False)


def test_where_and_how_it_is_written(model: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    path, constants = model
    target = tmp_path / "compiled.onnx"
    entries = {"ep_context_enable": "1", "ep_context_file_path": str(target), "ep_context_embed_mode": "1"}
    ort.InferenceSession(path.read_bytes(), with_entries(**entries, ep_context_node_name_prefix="first_"))
    node = the_node(target)
    assert node.name.startswith("first_Sardonyx_")
    assert attributes(node)["embed_mode"] == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["compiled.onnx", "model.onnx"]
    check(target, constants)
    check(target.read_bytes(), constants)
    with pytest.raises(errors.Fail, match=r"exists already\. Please remove the EP context model"):
        ort.InferenceSession(path, with_entries(**entries))
    entries["ep_context_file_path"] = str(tmp_path)
    with pytest.raises(errors.InvalidArgument, match="should not point to a folder"):
        ort.InferenceSession(path, with_entries(**entries))


def test_what_no_engine_can_hold_is_not_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A gradient goes back along nodes that ran before it."""
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
        program (float[3] x) => (float[3] y, float[3] g)
        {
            y = Mul(x, x)
            g = ai.onnx.preview.training.Gradient<xs = ["x"], y = "y">(x)
        }
    """)
    onnx.save(model, tmp_path / "gradient.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    made = ort.InferenceSession(tmp_path / "gradient.onnx", options)
    assert made.run(None, {"x": np.zeros(3, np.float32)})[0].shape == (3,)
    assert "no compiled model is written" in capfd.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["gradient.onnx"]
    compiler = ort.ModelCompiler(options, tmp_path / "gradient.onnx")
    compiler.compile_to_file(tmp_path / "out.onnx")  # as it is
    assert len(onnx.load(tmp_path / "out.onnx").graph.node) == 2
    flags = ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
    with pytest.raises(errors.Fail, match="Unable to compile any nodes"):
        ort.ModelCompiler(options, tmp_path / "gradient.onnx", flags=flags).compile_to_file(tmp_path / "other.onnx")


def test_the_compiler_writes_compiled_models(model: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    path, constants = model
    flags = ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
    options = with_entries(ep_context_enable="1")
    ort.ModelCompiler(options, path, flags=flags).compile_to_file(tmp_path / "beside.onnx")
    check(tmp_path / "beside.onnx", constants)
    assert (tmp_path / "beside.engine").exists()
    inside = ort.ModelCompiler(options, path, embed_compiled_data_into_model=True, flags=flags)
    check(inside.compile_to_bytes(), constants)
    chunks: list[bytes] = []
    inside.compile_to_stream(chunks.append)
    check(b"".join(chunks), constants)
    with pytest.raises(errors.InvalidArgument, match="no place for its engine"):
        ort.ModelCompiler(options, path).compile_to_bytes()
    with pytest.raises(errors.InvalidArgument, match="No such file or directory"):
        ort.ModelCompiler(options, path).compile_to_file(tmp_path / "absent" / "x.onnx")


def test_callers_carry_the_engine_themselves(model: tuple[Path, dict[str, np.ndarray]], tmp_path: Path) -> None:
    path, constants = model
    held: dict[str, bytes] = {}

    def write(name: str, data: ort.OrtEpContextData) -> None:
        held[name] = data.read(0, data.size)

    compiler = ort.ModelCompiler(with_entries(ep_context_enable="1"), path)
    compiler.set_ep_context_data_write_func(write)
    content = compiler.compile_to_bytes()
    assert list(held) == ["model_ctx.engine"]
    assert len(content) < 2000
    compiler.clear_ep_context_data_write_func()
    compiler.compile_to_file(tmp_path / "out.onnx")
    assert len(held) == 1

    def read(name: str, buffer: ort.OrtEpContextDataBuffer) -> None:
        buffer.allocate(len(held[name]))
        buffer.write(held[name])

    options = ort.SessionOptions()
    options.set_ep_context_data_read_func(read, 1 << 30)
    check(content, constants, options)
    options.set_ep_context_data_read_func(read, 100)
    with pytest.raises(errors.Fail, match=r"raised ValueError for 'model_ctx\.engine'"):
        ort.InferenceSession(content, options)
    options.set_ep_context_data_read_func(lambda name, buffer: None, 100)
    with pytest.raises(errors.Fail, match=r"has allocated nothing for 'model_ctx\.engine'"):
        ort.InferenceSession(content, options)
    options.clear_ep_context_data_read_func()
    with pytest.raises(errors.NoSuchFile, match=r"model_ctx\.engine"):
        ort.InferenceSession(content, options)


def context_model(**changes: object) -> bytes:
    found = {"source": "Sardonyx", "embed_mode": 0, "ep_cache_context": b"x.engine", **changes}
    nodes = [
        helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **found)
        for _ in range(int(found.pop("count", 1)))  # type: ignore[call-overload]
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return content


def test_models_of_other_engines_are_left_alone() -> None:
    with pytest.raises(errors.NotImplemented, match="compiled for QNN"):
        ort.InferenceSession(context_model(source="QNN"))
    assert context_in(memoryview(context_model())) == Context(None, "x.engine")
    assert context_in(memoryview(context_model(count=2))) is None
    whole = context_model()
    for end in range(len(whole)):
        assert context_in(memoryview(whole[:end])) in (None, Context(None, "x.engine"))
    with pytest.raises(errors.Fail, match="is damaged"):
        ort.InferenceSession(context_model(embed_mode=1, ep_cache_context=b"no engine"))


@pytest.mark.parametrize("name", [b"../x.engine", b"/etc/x.engine", b"a/../../x.engine"])
def test_engines_lie_below_the_model(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "model.onnx").write_bytes(context_model(ep_cache_context=name))
    with pytest.raises(errors.InvalidArgument, match="must name a file beside the model or below its folder"):
        ort.InferenceSession(tmp_path / "inner" / "model.onnx")
