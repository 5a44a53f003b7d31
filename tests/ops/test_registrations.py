"""What is imported on demand is found by its name, wherever it is registered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.compiler.kernels import template
from sardonyx.ops.framework import registry
from sardonyx.ops.framework.operator import registered
from sardonyx.ops.framework.registrations import Registrations


def test_every_operator_is_found_by_its_name() -> None:
    registry.load_families()
    files = registry._FAMILIES._files
    for (domain, op_type), classes in registered().items():
        for cls in classes:
            if cls.__module__.startswith("sardonyx.ops."):
                found = files.get("", {}) | files.get(op_type, {})
                assert cls.__module__ in found, (op_type, cls)
                assert found[cls.__module__] or domain != "", (op_type, cls)


def test_every_template_is_found_by_its_name() -> None:
    packages = [one._files for one in template._registrations()]
    for name, cls in template.templates().items():
        assert any(cls.__module__ in [*files.get(name, ()), *files.get("", ())] for files in packages), name
        assert template.find_template(name) is cls
    assert template.find_template("no such template") is None


def test_a_file_that_computes_names_is_always_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "registering"
    prelude = "given = lambda *names, **others: lambda call: call\n"
    files = {
        "__init__": "",
        "inner/__init__": "",
        "inner/one": prelude + "for name in 'One', 'Other':\n    given(name)(print)",
        "inner/two": prelude + '@given(\n    "Two", since=2)\ndef f(): ...',
        "inner/five": prelude + "@given(\"Five\", since=2,\n    domain='other')\ndef f(): ...",
        "three": prelude + '@given("Three")\ndef f(): ...',
        "four": "def forgiven(name): ...\nforgiven('Two')\nforgiven(1)",
        "left_out": "raise ImportError",
    }
    (package / "inner").mkdir(parents=True)
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import registering  # type: ignore[import-not-found]

    found = Registrations(registering, "given", without="left_out")
    found.load("Two")
    assert {"registering.inner.one", "registering.inner.two"} <= set(sys.modules)
    assert not {"registering.three", "registering.four", "registering.inner.five"} & set(sys.modules)
    found.load("Five", domains=False)
    assert "registering.inner.five" not in sys.modules
    found.load("Five")
    assert "registering.inner.five" in sys.modules
    found.load_all()
    assert "registering.three" in sys.modules


def test_a_model_imports_the_families_of_its_operators_alone() -> None:
    code = """
import sys, onnx.parser, sardonyx
model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) {y = Relu(x)}')
session = sardonyx.InferenceSession(model.SerializeToString())
print(*[name for name in sys.modules if name.startswith("sardonyx.ops.")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "sardonyx.ops.elementwise" in imported
    assert "sardonyx.ops.recurrent" not in imported
    assert "sardonyx.ops.ml.trees" not in imported
    assert not [name for name in imported if name.startswith("sardonyx.ops.microsoft.")]
