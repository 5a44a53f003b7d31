"""onnx-ir without sympy, until dimensions are computed with."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from sardonyx._late_algebra import LateLoader, StandIn


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
