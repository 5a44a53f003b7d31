"""`sardonyx cache`: what is kept, and how it goes; and what is said where nothing is."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from sardonyx.compiler.llvm.generator_version import generator_version
from sardonyx.compiler.llvm.installed_packs import pack_name
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.files.kernel_pack import write_pack
from tests.cli.conftest import Command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a user names, with a file of the user's own in it, and files as this package makes them below."""
    chosen = tmp_path / "mine"
    own = chosen / "sardonyx" / "kernels"
    own.mkdir(parents=True, mode=0o700)
    (chosen / "notes.o").write_bytes(b"mine")
    (own / "other.o").write_bytes(b"not of this package")
    (own / f"{'a' * 40}.o").write_bytes(b"SARDONYX KERNEL 1\n" + bytes(982))
    (own / f"{'b' * 40}.o").write_bytes(b"SARDONYX KERNEL 1\n" + bytes(1982))
    (own / f"machine-{'0' * 16}.json").write_bytes(b'{\n "format": 1}')
    old = time.time() - 40 * 86400
    os.utime(own / f"{'b' * 40}.o", (old, old))
    monkeypatch.setenv("SARDONYX_CACHE", str(chosen))
    return own


def test_shows_where_and_how_much_is_kept(command: Command, folder: Path) -> None:
    outcome = command("cache")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"folder  {folder}" in outcome.out
    report = json.loads(command("cache", "--json").out)
    assert report["kinds"]["kernel"] == {"files": 2, "bytes": 3000}
    assert report["kinds"]["machine"]["files"] == 1
    assert (report["folder"], report["problem"], report["removed"]) == (str(folder), None, False)
    assert report["bytes"] == 3000 + report["kinds"]["machine"]["bytes"]
    assert len(list(folder.glob("*"))) == 4


def test_tells_of_kernels_that_come_ready(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json.loads(command("cache", "--json").out)["ready"] is None
    monkeypatch.setenv("SARDONYX_KERNELS", str(tmp_path))
    path = tmp_path / pack_name(host_target())
    write_pack(path, {"one": b"code", "two": b"code"}, {"generator": generator_version()})
    assert f"ready   2 kernels in {path}" in command("cache").out
    assert json.loads(command("cache", "--json").out)["ready"] == {"pack": str(path), "kernels": 2, "problem": None}
    write_pack(path, {"one": b"code"}, {"generator": "of another day", "version": "0.0.1", "llvm": "llvmlite 0.1"})
    assert "is not used: it is for another state of the package (0.0.1 of Sardonyx" in command("cache").out
    path.write_bytes(b"no pack")
    report = json.loads(command("cache", "--json").out)["ready"]
    assert (report["kernels"], report["problem"]) == (0, f"{path} is no pack of kernels")


def test_clean_removes_its_own_files_alone(command: Command, folder: Path) -> None:
    """What was measured of the machine stays unless it is asked for, as it takes a while."""
    outcome = command("cache", "clean")
    assert outcome.code == 0
    assert sorted(path.name for path in folder.iterdir()) == [f"machine-{'0' * 16}.json", "other.o"]
    assert (folder.parents[1] / "notes.o").read_bytes() == b"mine"
    assert command("cache", "clean", "--all").code == 0
    assert [path.name for path in folder.iterdir()] == ["other.o"]
    assert "nothing was there to be removed" in command("cache", "clean").out


def test_an_engine_file_is_run_after_a_cleaning_unless_all_goes(
    command: Command, embedding: Path, folder: Path, tmp_path: Path
) -> None:
    """Nothing would make the proof again that it is the user's own."""
    engine = tmp_path / "model.engine"
    assert command("compile", embedding, "-o", engine).code == 0
    strict = ("run", engine, "--option", "session.fail_on_suboptimal_compiled_model=1")
    assert command("cache", "clean").code == 0
    assert command(*strict).code == 0
    assert command("run", engine).err == ""
    assert json.loads(command("cache", "clean", "--all", "--json").out)["kinds"]["trust_record"]["files"] == 1
    refused = command(*strict)
    assert refused.code == 1
    assert "it was not made by this user" in refused.err
    outcome = command("run", engine, "--json")
    (line,) = outcome.err.splitlines()
    assert line.startswith(
        f"sardonyx: {str(engine)!r} cannot be used as it is, and the model in it is compiled: it was"
    )
    assert json.loads(outcome.out)["outputs"][0]["shape"] == [1, 1, 3]


@pytest.mark.parametrize("chosen", ["off", "below a file"])
def test_compile_says_where_no_proof_of_an_engine_is_kept(
    command: Command, embedding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SARDONYX_CACHE", "off" if chosen == "off" else str(tmp_path / "file"))
    outcome = command("compile", embedding, "-o", tmp_path / "model.engine", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["engine"] == str(tmp_path / "model.engine")
    (line,) = outcome.err.splitlines()
    assert line.startswith("sardonyx: nothing is kept: ")
    assert line.endswith("unless sardonyx.engine_trusted = 1 answers for it")


def test_what_was_used_lately_can_stay(command: Command, folder: Path) -> None:
    assert json.loads(command("cache", "clean", "--older-than", 30, "--json").out)["kinds"] == {
        "kernel": {"files": 1, "bytes": 2000}
    }
    assert (folder / f"{'a' * 40}.o").exists()


@pytest.mark.parametrize("arguments", [["empty"], ["--older-than", "-1"], ["clean", "--older-than", "soon"]])
def test_wrong_usage_removes_nothing(command: Command, folder: Path, arguments: list[str]) -> None:
    outcome = command("cache", *arguments)
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert len(list(folder.iterdir())) == 4


def test_a_folder_that_is_not_there_is_not_made(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "later"))
    outcome = command("cache")
    assert "nothing is kept there" in outcome.out
    assert not (tmp_path / "later").exists()


def test_runs_say_where_nothing_can_be_kept(
    command: Command, embedding: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "file"))
    for name in ("run", "explain"):
        outcome = command(name, embedding)
        assert outcome.code == 0
        (line,) = outcome.err.splitlines()
        assert line.startswith(f"sardonyx: nothing is kept: {tmp_path / 'file'}")
        assert line.endswith("set SARDONYX_CACHE to a folder of your own")
    assert "nothing is kept: " in command("cache").out


def test_who_wants_nothing_kept_is_told_nothing(
    command: Command, embedding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    assert command("run", embedding).err == ""
    assert command("cache").out == "nothing is kept: SARDONYX_CACHE turns it off\n"
