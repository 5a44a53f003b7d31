"""Figures of a machine on disk: whole, private and of this machine, or none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sardonyx.runtime.files.machine_file import drop, machine_key, read_sections, write_section

KEY = machine_key("target")


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    return path


def test_sections_stand_beside_each_other(tmp_path: Path) -> None:
    assert read_sections(KEY, tmp_path) == {}
    assert write_section(KEY, "one", {"a": 1.5}, tmp_path) == write_section(KEY, "two", {"b": 2}, tmp_path)
    assert read_sections(KEY, tmp_path) == {"one": {"a": 1.5}, "two": {"b": 2}}
    assert write_section("another machine", "one", {"a": 3}, tmp_path) != only_first(tmp_path, KEY)
    assert read_sections(KEY, tmp_path)["one"] == {"a": 1.5}


def only_first(folder: Path, key: str) -> Path:
    """The file of a machine."""
    return next(path for path in folder.glob("*.json") if json.loads(path.read_text())["machine"] == key)


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "[" * 100_000, "null", "\xff\xfe", "half", "number", "machine", "format"]
)
def test_a_damaged_file_counts_as_absent(damage: str, tmp_path: Path) -> None:
    write_section(KEY, "one", {"a": {"1": 190.0}}, tmp_path)
    path = only_file(tmp_path)
    text = path.read_text()
    changed = {
        "half": text[: len(text) // 2],
        "number": text.replace("190.0", "191.0"),
        "machine": text.replace(json.dumps(KEY), json.dumps("another")),
        "format": text.replace('"format": 1', '"format": 0'),
    }.get(damage, damage)
    assert changed != text
    path.write_bytes(changed.encode("latin-1"))
    assert read_sections(KEY, tmp_path) == {}
    assert write_section(KEY, "one", {"new": 1}, tmp_path) == str(path)
    assert read_sections(KEY, tmp_path) == {"one": {"new": 1}}


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_file_that_others_may_write_is_not_trusted(tmp_path: Path) -> None:
    path = write_section(KEY, "one", {"a": 1}, tmp_path)
    assert path is not None
    os.chmod(path, 0o666)
    assert read_sections(KEY, tmp_path) == {}
    os.chmod(path, 0o600)
    assert read_sections(KEY, tmp_path) == {"one": {"a": 1}}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert write_section(KEY, "one", {"a": 1}, blocked / "below") is None
    assert read_sections(KEY, blocked / "below") == {}


def test_what_is_dropped_is_gone(tmp_path: Path) -> None:
    path = write_section(KEY, "one", {"a": 1}, tmp_path)
    write_section("another machine", "one", {"a": 2}, tmp_path)
    assert drop(KEY, tmp_path) == path
    assert drop(KEY, tmp_path) is None
    assert read_sections(KEY, tmp_path) == {}
    assert read_sections("another machine", tmp_path) == {"one": {"a": 2}}


def test_the_users_cache_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    path = write_section(KEY, "one", {"a": 1})
    assert path is not None
    assert os.path.dirname(path) == str(tmp_path / "sardonyx" / "kernels")
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    assert write_section(KEY, "one", {"a": 1}) is None
    assert read_sections(KEY) == {}
    assert drop(KEY) is None


def test_machines_differ_by_target_and_processor() -> None:
    assert machine_key("one") == machine_key("one")
    assert machine_key("one") != machine_key("two")
    assert machine_key("one").endswith("processors")
