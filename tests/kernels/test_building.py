"""Packs that are built from the list."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernels import __main__ as command
from kernels import building, examples, machines
from kernels.building import Listed, build, read_list, wanted, write_list
from kernels.collecting import asked_for
from sardonyx._version import __version__
from sardonyx.compiler.llvm.codegen import compile_object
from sardonyx.compiler.llvm.installed_packs import pack_name
from sardonyx.compiler.llvm.library import full_key
from sardonyx.compiler.llvm.runtime_functions import OF_PROGRAMS, function_key
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.files.kernel_pack import KernelPack


@pytest.fixture(scope="module")
def some() -> list[Listed]:
    """The kernels of a small model on two targets."""
    (example, *_) = examples.small()
    found: dict[str, Listed] = {}
    for name in ("avx2", "neon"):
        target, threads = machines.machines(name)[0]
        for key, (emit, spec) in asked_for(example.model, example.inputs(), target, threads)[0].items():
            names = {name, *(found[key].names if key in found else ())}
            found[key] = Listed(emit, spec, names)
    return list(found.values())


@pytest.mark.names_targets
@pytest.mark.parametrize("name", ["avx2", "neon"])
def test_a_pack_has_the_kernels_of_its_target_and_the_functions_of_the_runtime(
    name: str, some: list[Listed], tmp_path: Path
) -> None:
    target = machines.targets()[name]
    (pack,) = build(tmp_path / "new", {name: target}, some)
    assert (pack.name, pack.path.name, pack.nbytes) == (name, pack_name(target), pack.path.stat().st_size)
    found = KernelPack(pack.path)
    mine = [one for one in some if name in one.names]
    assert len(found) == pack.kernels == len(mine) + len(OF_PROGRAMS)
    for one in mine[:3]:
        assert found.find(full_key(one.key, target)) == compile_object(one.emit(target, one.spec), target)
    for function in OF_PROGRAMS:
        assert found.find(full_key(function_key(function), target)) is not None
    assert (pack.path.stat().st_mode & 0o022) == 0


@pytest.mark.names_targets
def test_the_list_is_written_in_one_order(some: list[Listed], tmp_path: Path) -> None:
    for number, order in enumerate((some, some[::-1])):
        write_list(order, tmp_path / f"{number}.jsonl")
    assert (tmp_path / "0.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    assert {(one.key, frozenset(one.names)) for one in read_list(tmp_path / "0.jsonl")} == {
        (one.key, frozenset(one.names)) for one in some
    }


def test_targets_by_their_names() -> None:
    ((name, target),) = wanted(["host"]).items()
    assert target == host_target()
    assert machines.targets()[name].name == target.name
    assert set(wanted(["x86_64", "aarch64"])) == set(machines.targets())
    assert list(wanted(["avx2", "neon", "avx2"])) == ["avx2", "neon"]
    with pytest.raises(ValueError, match="no target 'sse9': there are host, x86_64, aarch64, portable, avx2"):
        wanted(["sse9"])


def test_the_command_says_what_it_built(
    some: list[Listed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(building, "read_list", lambda: some)
    monkeypatch.setattr(sys, "argv", ["kernels", "build", str(tmp_path), "avx2"])
    command.main()
    assert "avx2" in capsys.readouterr().out
    assert (tmp_path / pack_name(machines.targets()["avx2"])).exists()
    monkeypatch.setattr(sys, "argv", ["kernels", "build", str(tmp_path), "sse9"])
    with pytest.raises(SystemExit, match="no target 'sse9'"):
        command.main()
    monkeypatch.setattr(sys, "argv", ["kernels", "list", "--zoo", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"python -m benchmarks\.zoo"):
        command.main()


@pytest.fixture
def hook() -> ModuleType:
    """The build hook of the distribution."""
    pytest.importorskip("hatchling")
    path = Path(building.__file__).parent / "hatch_build.py"
    spec = importlib.util.spec_from_file_location("hatch_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.names_targets
@pytest.mark.parametrize(
    ("targets", "tag"), [("avx2", "py3-none-linux_x86_64"), ("neon", "py3-none-any"), ("avx2 neon", "py3-none-any")]
)
def test_the_wheel_has_the_packs_of_the_targets_that_are_asked_for(
    targets: str, tag: str, hook: ModuleType, some: list[Listed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "read_list", lambda: some)
    monkeypatch.setattr(hook.sysconfig, "get_platform", lambda: "linux-x86_64")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("SARDONYX_KERNELS_TARGETS", targets)
    packs: Any = hook.Packs.__new__(hook.Packs)
    monkeypatch.setattr(hook.Packs, "app", SimpleNamespace(display_info=lambda text: None))
    data: dict[str, Any] = {"force_include": {}}
    packs.initialize("standard", data)
    names = {pack_name(machines.targets()[one]) for one in targets.split()}
    assert set(data["force_include"].values()) == {f"sardonyx_kernels/{name}" for name in names}
    assert all(len(KernelPack(path)) > 10 for path in data["force_include"])
    assert data["tag"] == tag
    packs.finalize("standard", data, "")
    assert not any(Path(path).exists() for path in data["force_include"])


def test_it_is_for_one_version_of_sardonyx_and_of_llvm(hook: ModuleType) -> None:
    import llvmlite

    metadata: dict[str, Any] = {"version": __version__}
    hook.Versions.update(None, metadata)
    assert metadata["dependencies"] == [f"sardonyx=={__version__}", f"llvmlite=={llvmlite.__version__}"]


def test_the_list_is_one_json_object_a_line() -> None:
    for line in building.LIST.read_text(encoding="utf-8").splitlines():
        assert set(json.loads(line)) == {"for", "emit", "objects", "spec"}
