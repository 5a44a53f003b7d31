"""Files are opened and made by one module alone, so that what it guards against is guarded against everywhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sardonyx

ROOT = Path(sardonyx.__file__).parent

# Calls that open, make or change files by name; `x.f` is that of any object.
BUILTIN = {"open"}
METHODS = {
    *("write_bytes", "write_text", "read_bytes", "read_text", "touch", "mkstemp", "fromfile", "tofile", "memmap"),
    *("chmod", "rmtree", "NamedTemporaryFile", "symlink_to", "hardlink_to"),
}
OF_MODULES = {
    "os": {"open", "replace", "rename", "unlink", "remove", "link", "symlink", "mkdir", "makedirs", "rmdir", "chmod"},
    "np": {"save", "savez", "load"},
    "onnx": {"save", "save_model"},
    "tempfile": {"mkdtemp"},
    "io": {"open"},
}

# Where they may be: the files are the system's, or the package's own in its installation, or the call is not of a file
# that somebody names.
ALLOWED = {
    "runtime/files/opening.py": "the module itself",
    "runtime/files/cache_folder.py": "makes folders",
    "runtime/files/own_files.py": "removes files that it has looked at",
    "runtime/files/engine_file.py": "removes the lock that it holds",
    "runtime/control_groups.py": "/proc",
    "runtime/files/machine_file.py": "/proc",
    "runtime/memory/address_space.py": "/proc",
    "runtime/memory/mapped_pages.py": "/proc",
    "runtime/memory/memory.py": "/proc",
    "runtime/threads/other_load.py": "/proc",
    "runtime/threads/processors.py": "/sys",
    "api/building/ep_devices.py": "/proc",
    "compiler/llvm/target.py": "/proc and /sys",
    "compiler/llvm/generator_version.py": "sources of this package",
    "ops/framework/registrations.py": "sources of this package",
    "providers/entry_points.py": "metadata of installed packages",
    "cli/streams.py": "the null device",
    "models/folders/staging.py": "moves files that it has made",
    "cli/run.py": "np.save to an open file",
    "cli/model_inputs.py": "np.load of an open file",
    "quantization/calibration/readers.py": "np.load of an open file",
    "quantization/calibration/state.py": "np.load and np.savez of open files",
    "quantization/quant_utils.py": "onnx writes external data itself, in a folder of its own",
    "tools/symbolic_shape_infer.py": "onnx writes external data itself",
}


def calls(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in BUILTIN:
            yield f"{called.id} in line {node.lineno}"
        elif isinstance(called, ast.Attribute):
            module = called.value.id if isinstance(called.value, ast.Name) else ""
            if called.attr in METHODS or called.attr in OF_MODULES.get(module, ()):
                yield f"{called.attr} in line {node.lineno}"


@pytest.mark.parametrize("folder", sorted(path.name for path in ROOT.iterdir() if path.is_dir()))
def test_no_other_module_opens_files(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in (ROOT / folder).rglob("*.py")
        if path.relative_to(ROOT).as_posix() not in ALLOWED and (wrong := list(calls(path)))
    }
    assert found == {}


def test_what_is_allowed_is_there() -> None:
    assert [name for name in ALLOWED if not list(calls(ROOT / name))] == []
