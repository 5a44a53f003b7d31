"""Another allocator of C, preloaded as docs/session.md has it: results lie in its memory, and have the same bits."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as ort

# Elements of a result that NumPy allocates, and of one from the pool of results.
SIZES = (1000, 100_000)

PROGRAM = """
import ctypes, sys
import numpy as np
import sardonyx as ort

is_mine = ctypes.CDLL(None).mi_is_in_heap_region
is_mine.restype, is_mine.argtypes = ctypes.c_bool, [ctypes.c_void_p]
session = ort.InferenceSession(sys.argv[1])
results = []
for size in map(int, sys.argv[3:]):
    for _ in range(3):  # the first run takes another way than those after it
        (result,) = session.run(None, {"x": np.linspace(-4, 4, size, dtype=np.float32)})
        assert is_mine(result.ctypes.data), f"{size} elements lie elsewhere"
    results.append(result)
np.save(sys.argv[2], np.concatenate(results))
"""


def mimalloc() -> str | None:
    """The library of the system or of the package `cmeel-mimalloc`, as a path or a name that the loader finds."""
    found = ctypes.util.find_library("mimalloc")
    if found is not None:
        return found
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files("cmeel-mimalloc") or ():
            if file.name.startswith("libmimalloc.so"):
                return str(Path(str(file.locate())).resolve())
    return None


def sigmoid(path: Path) -> None:
    """A model of one native step, over any number of elements."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Sigmoid", ["x"], ["y"])], "sigmoid", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD is of Linux's loader")
def test_results_lie_in_the_memory_of_mimalloc(tmp_path: Path) -> None:
    library = mimalloc()
    if library is None:
        pytest.skip("mimalloc is not installed, neither the system's nor the package cmeel-mimalloc")
    sigmoid(tmp_path / "model.onnx")
    arguments = [str(tmp_path / "model.onnx"), str(tmp_path / "results.npy"), *map(str, SIZES)]
    environment = {**os.environ, "LD_PRELOAD": library}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    session = ort.InferenceSession(tmp_path / "model.onnx")
    expected = [session.run(None, {"x": np.linspace(-4, 4, size, dtype=np.float32)})[0] for size in SIZES]
    np.testing.assert_array_equal(np.load(tmp_path / "results.npy"), np.concatenate(expected))
