"""What writes kernels is imported where one has to be written."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import sardonyx.compiler
from sardonyx.compiler.llvm import runtime_functions
from sardonyx.compiler.llvm.emitters import Emitter, emitter
from sardonyx.compiler.llvm.library import key_of

pytestmark = pytest.mark.machine_neutral


def test_every_emitter_is_the_function_that_it_names() -> None:
    found: set[Emitter] = set()
    for module in pkgutil.walk_packages(sardonyx.compiler.__path__, "sardonyx.compiler."):
        if module.name.endswith("compiler_child"):  # a program
            continue
        found |= {one for one in vars(importlib.import_module(module.name)).values() if isinstance(one, Emitter)}
    assert {one.__name__ for one in found} >= {"emit_gemm", "emit_attention"}
    found |= {emitter(f"engine.{module}", name) for module, name, _ in runtime_functions._FUNCTIONS.values()}
    for one in found:
        function = one.function
        assert key_of(one.__module__, one.__qualname__, "") == key_of(function.__module__, function.__qualname__, "")


def test_an_emitter_is_one_object() -> None:
    assert emitter("products.gemm", "emit_gemm") is emitter("products.gemm", "emit_gemm")


# A product with what follows it, rows that are normalised, and attention.
_SESSION = """
import sys
import numpy as np
import sardonyx as ort
from sardonyx.compiler.llvm.library import library
from onnx import parser, numpy_helper
model = parser.parse_model('''<ir_version: 10, opset_import: ["" : 20, "com.microsoft": 1]>
    g (float[n, 8, 16] x) => (float[n, 8, 16] y) {
        p = MatMul (x, w)
        r = Relu (p)
        s = LayerNormalization (r, scale)
        y = com.microsoft.MultiHeadAttention <num_heads = 2> (s, s, s)
    }''')
arrays = {"w": np.ones((16, 16), np.float32), "scale": np.ones(16, np.float32)}
model.graph.initializer.extend([numpy_helper.from_array(array, name) for name, array in arrays.items()])
session = ort.InferenceSession(model.SerializeToString())
(y,) = session.run(None, {"x": np.ones((1, 8, 16), np.float32)})
print(library().counts.compiled + library("", "runtime").counts.compiled > 0)
names = ["llvmlite.binding", "sympy", "email.message", "sardonyx.compiler.llvm.kernels.products.gemm",
    "sardonyx.compiler.kernels.attention.attention_loops", "sardonyx.compiler.llvm.kernels.engine.executor",
    "sardonyx.compiler.llvm.kernels.engine.call"]
print(*[name for name in names if name in sys.modules])
others = ["sardonyx.compiler.control_flow", "sardonyx.compiler.counted",
    "sardonyx.compiler.stored.stored_plan", "sardonyx.graph.saving", "sardonyx.ops.control_flow"]
print(*[name for name in others if name in sys.modules])
"""


def test_a_session_whose_kernels_are_cached_imports_nothing_that_writes_them(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        environment = {**os.environ, "SARDONYX_CACHE": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", _SESSION], capture_output=True, text=True, check=True, env=environment
        )
        seen.append(done.stdout.split("\n")[:3])
    first, second = seen
    assert first[0] == "True"
    assert {"llvmlite.binding", "sardonyx.compiler.llvm.kernels.products.gemm"} <= set(first[1].split())
    assert second == ["False", "", ""]
