"""onnx-ir without sympy, until dimensions are computed with; onnx without what a session does not need."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from sardonyx import _late_modules
from sardonyx._late_modules import AskedLoader, AskedModule, LateLoader, StandIn, version_below


def output_of(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


def test_a_model_of_fixed_shapes_needs_no_sympy() -> None:
    code = """
import sys, onnx.parser, numpy, sardonyx
model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) {y = Relu(x)}')
session = sardonyx.InferenceSession(model.SerializeToString())
print(session.run(None, {"x": numpy.array([-1, 2], numpy.float32)})[0].tolist())
print("sympy" in sys.modules)
"""
    assert output_of(code) == ["[0.0, 2.0]", "False"]


# What exporters write for sizes that vary: a slice of a table of positions by the sequence's length, a reshape by sizes
# that are computed, a cache that grows, and strided windows whose result is resized and flattened.
SYMBOLIC_MODEL = """
<ir_version: 9, opset_import: ["" : 20]>
g (float[batch, sequence, 12] x, float[batch, past, 12] cache, float[1, 2, height, width] image)
    => (float[batch, sequence, 3, 4] heads, float[batch, total, 12] present, float[1, pixels, 2] flat)
    <int64[3] table_shape = {1, 16, 12}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] axis = {1},
     int64[2] split = {3, 4}, int64[3] rows = {1, 2, -1}, float[4] twice = {1, 1, 2, 2}> {
    table = ConstantOfShape <value = float[1] {0.5}> (table_shape)
    shape = Shape (x)
    batch_size = Slice (shape, zero, one)
    two = Add (one, one)
    length = Slice (shape, one, two)
    positions = Slice (table, zero, length, axis)
    moved = Add (x, positions)
    head_shape = Concat <axis = 0> (batch_size, length, split)
    heads = Reshape (moved, head_shape)
    present = Concat <axis = 1> (cache, moved)
    pooled = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (image)
    halved = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (pooled)
    larger = Resize <mode = "nearest"> (halved, , twice)
    flattened = Reshape (larger, rows)
    flat = Transpose <perm = [0, 2, 1]> (flattened)
}
"""


def test_a_model_of_varying_sizes_needs_no_sympy() -> None:
    code = f"""
import sys, onnx.parser, numpy, sardonyx
model = onnx.parser.parse_model({SYMBOLIC_MODEL!r})
session = sardonyx.InferenceSession(model.SerializeToString())
for length in (3, 5):
    x = numpy.ones((2, length, 12), numpy.float32)
    image = numpy.ones((1, 2, 4 * length, 4 * length), numpy.float32)
    print([list(one.shape) for one in session.run(None, {{"x": x, "cache": x[:, 1:], "image": image}})])
print("sympy" in sys.modules)
"""
    assert output_of(code) == [
        "[[2, 3, 3, 4], [2, 5, 12], [1, 36, 2]]",
        "[[2, 5, 3, 4], [2, 9, 12], [1, 100, 2]]",
        "False",
    ]


def test_dimensions_are_computed_with_the_real_one() -> None:
    code = """
import sys, sardonyx, onnx_ir
print("sympy" in sys.modules)
import sardonyx.graph.load
def dims():
    a, b = onnx_ir.SymbolicDim("max(a, b)"), onnx_ir.SymbolicDim("a")
    found = [a + b, a // 2, b % 3, a * b - 1, onnx_ir.SymbolicDim("floor(a / 2)"), onnx_ir.SymbolicDim("mod(a, 2)")]
    return [str(dim.simplify()) for dim in found]
print(dims())
import sympy
print(onnx_ir.SymbolicDim(sympy.Symbol("n")), isinstance((a := onnx_ir.SymbolicDim("a + 1"))._expr, sympy.Add))
try:
    onnx_ir.SymbolicDim(1.5)
except TypeError as error:
    print("TypeError")
"""
    with_late = output_of(code)
    early = output_of("import sympy\n" + code)
    assert with_late[0] == "False"
    assert early[0] == "True"
    assert with_late[1:] == early[1:]
    assert with_late[-1] == "TypeError"


def executed(folder: Path, name: str, source: str) -> ModuleType:
    """A module with this source, whose `import decimal` is late."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = LateLoader(spec.loader, "decimal")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_and_classes_are_the_real_ones_when_they_are_used(tmp_path: Path) -> None:
    source = """
import math
import decimal
MAKES = {"make": decimal.Decimal}
def is_decimal(value): return isinstance(value, decimal.Decimal)
def root(value): return math.sqrt(value)
"""
    import decimal

    module = executed(tmp_path, "uses_decimal", source)
    assert isinstance(module.decimal, StandIn)
    assert module.MAKES["make"]("1.5") == decimal.Decimal("1.5")
    assert module.is_decimal(decimal.Decimal(1))
    assert not module.is_decimal(1)
    assert module.root(4) == 2
    assert module.decimal.Decimal is decimal.Decimal


def test_a_module_that_needs_it_at_once_gets_the_real_one(tmp_path: Path) -> None:
    import decimal

    module = executed(
        tmp_path, "extends_decimal", "import decimal\nseen = 1\nclass Own(decimal.Decimal, metaclass=type): ..."
    )
    assert issubclass(module.Own, decimal.Decimal)
    assert module.decimal is decimal
    assert module.__name__ == "extends_decimal"


def test_onnx_comes_without_what_a_session_does_not_need() -> None:
    code = """
import sys, sardonyx, onnx
late = ["importlib.metadata", "email.message", "tarfile", "argparse", "google.protobuf.internal.decoder"]
print([name for name in late if name in sys.modules])
import importlib.metadata
print(onnx.__version__ == importlib.metadata.version("onnx"), onnx.importlib is importlib)
"""
    assert output_of(code) == ["[]", "True True"]


def test_what_is_asked_of_onnx_is_there() -> None:
    code = """
import sys, sardonyx, onnx, onnx.utils
from onnx import parser
from onnx.printer import to_text
model = parser.parse_model('<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) {y = Relu(x)}')
print("Relu" in to_text(model), "merge_models" in dir(onnx.compose))
print("Relu" in onnx.serialization.registry.get("textproto").serialize_proto(model).decode())
print(onnx.version_converter.convert_version(model, 21).opset_import[0].version)
try:
    onnx.compose.nothing
except AttributeError as error:
    print(error)
onnx.utils.Extractor = None
print(onnx.utils.Extractor, callable(onnx.utils.extract_model), type(onnx.utils) is type(sys))
"""
    assert output_of(code) == [
        "True True",
        "True",
        "21",
        "module 'onnx.compose' has no attribute 'nothing'",
        "None True True",
    ]


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_messages_are_whole_in_every_implementation(implementation: str) -> None:
    code = f"""
import os
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "{implementation}"
import sardonyx, onnx
from google.protobuf import json_format, text_format, timestamp_pb2
from google.protobuf.internal import api_implementation
text = '<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) {{y = Relu(x)}}'
model = onnx.parser.parse_model(text)
print(api_implementation.Type(), onnx.ModelProto.FromString(model.SerializeToString()) == model)
print(text_format.Parse(text_format.MessageToString(model), onnx.ModelProto()) == model)
print(json_format.Parse(json_format.MessageToJson(model), onnx.ModelProto()) == model)
print(timestamp_pb2.Timestamp(seconds=86400).ToJsonString())
"""
    assert output_of(code) == [f"{implementation} True", "True", "True", "1970-01-02T00:00:00Z"]


def asked(folder: Path, name: str, source: str) -> ModuleType:
    """A module with this source, which is executed when something of it is asked for."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = AskedLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_threads_that_ask_at_once_find_all_of_a_module(tmp_path: Path) -> None:
    module = asked(tmp_path, "slow_module", "import time\nfirst = 1\ntime.sleep(0.2)\nlast = 2")
    start = threading.Barrier(4)

    def found(name: str) -> int:
        start.wait()
        value: int = getattr(module, name)
        return value

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(found, ["last", "last", "first", "last"])) == [2, 2, 1, 2]


def test_a_child_process_executes_what_another_thread_had_begun(tmp_path: Path) -> None:
    module = asked(tmp_path, "begun_module", "import time\ntime.sleep(0.5)\nlast = 2")
    thread = threading.Thread(target=lambda: module.last)
    thread.start()
    while not _late_modules._BEGUN:
        time.sleep(0.001)
    child = os.fork()
    if child == 0:
        os._exit(module.last)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert module.last == 2


def test_a_package_is_not_executed_for_its_submodules_or_marks(tmp_path: Path) -> None:
    package = asked(tmp_path, "wide_package", "import sys\nmarked = sys.modules['wide_package'].__module__\nlast = 2")
    one = ModuleType("wide_package.one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "wide_package", package)
        package.one = one  # type: ignore[attr-defined]
        package.__module__ = "elsewhere"
        assert type(package) is AskedModule
        assert "last" not in vars(package)
        assert (package.one, package.last, package.marked) == (one, 2, "elsewhere")
        assert type(package) is ModuleType


def test_values_are_set_after_the_module_is_executed(tmp_path: Path) -> None:
    module = asked(tmp_path, "set_module", "last = 2")
    module.last = ModuleType("another")
    assert module.last.__name__ == "another"


def test_all_of_onnx_ir_is_there() -> None:
    code = """
import sys, sardonyx, sardonyx.passes.cleanup
package = sys.modules["onnx_ir.passes.common"]
print("InlinePass" in vars(package))
import onnx_ir
from onnx_ir.passes.common import InlinePass, unused_removal
print(InlinePass.__name__, package.RemoveUnusedNodesPass is unused_removal.RemoveUnusedNodesPass)
print(type(onnx_ir.schemas.OpSignature).__name__, onnx_ir.schemas.__module__)
import packaging.version
print(packaging.version.Version("1.2") < packaging.version.parse("1.10"))
"""
    assert output_of(code) == ["False", "InlinePass True", "type onnx_ir", "True"]


def test_a_module_that_fails_fails_again(tmp_path: Path) -> None:
    module = asked(tmp_path, "wrong_module", "first = 1\nraise ValueError('broken')")
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            _ = module.last


def test_a_module_may_ask_for_what_it_has_not_yet(tmp_path: Path) -> None:
    source = "import sys\nown = sys.modules.get('curious_module')\nknew = hasattr(own, 'last')\nlast = 2"
    module = asked(tmp_path, "curious_module", source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "curious_module", module)
        assert (module.last, module.knew) == (2, False)


@pytest.mark.parametrize(
    ("folders", "version"),
    [
        (
            {"thing-1.2rc1.dist-info": "Name: thing\nVersion: 1.2.0rc1\n\nVersion: no\n"},
            "1.2.0rc1",
        ),
        ({"thing-1.2.dist-info": "Name: thing\n\nVersion: no\n"}, None),
        ({"thing-1.2.dist-info": None}, None),
        ({"other-1.2.dist-info": "Version: 1.2\n"}, None),
        ({"thing-1.2.dist-info": "Version: 1.2\n", "thing-1.3.dist-info": "Version: 1.3\n"}, None),
    ],
)
def test_versions_are_those_of_the_one_distribution(
    tmp_path: Path, folders: dict[str, str | None], version: str | None
) -> None:
    for name, text in folders.items():
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "METADATA").write_text(text)
    assert version_below(str(tmp_path), "thing") == version
    assert version_below(str(tmp_path / "nowhere"), "thing") is None
