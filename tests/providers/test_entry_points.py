"""Entry points are found wherever a package may declare some, and nothing is imported where none does."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sardonyx.providers.entry_points import entry_points

GROUP = "sardonyx.execution_providers"
CPU = "CPUExecutionProvider"


def declare(folder: Path, text: str) -> None:
    folder.mkdir()
    name = "METADATA" if folder.suffix == ".dist-info" else "PKG-INFO"
    (folder / name).write_text(f"Metadata-Version: 2.1\nName: {folder.stem.split('-')[0]}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(text)


def names(own: str = CPU) -> list[str]:
    return [entry.name for entry in entry_points(GROUP, own)]


@pytest.mark.parametrize("suffix", [".dist-info", ".egg-info"])
def test_packages_on_the_path_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    declare(tmp_path / f"one-1.0{suffix}", f"[console_scripts]\nx = y:z\n\n[{GROUP}]\nOne = one:Provider\n")
    assert "One" not in names()
    monkeypatch.syspath_prepend(tmp_path)
    assert "One" in names()
    assert CPU not in names()


def test_archives_are_left_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as archive:
        archive.writestr("one-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n")
        archive.writestr("one-1.0.dist-info/entry_points.txt", f"[{GROUP}]\nOne = one:Provider\n")
    monkeypatch.syspath_prepend(tmp_path / "packages.zip")
    assert "One" in names()


def test_nothing_is_imported_where_only_our_own_is_declared(tmp_path: Path) -> None:
    """Other groups, and another group of which the name begins alike, are none of ours."""
    declare(tmp_path / "own-1.0.dist-info", f"[{GROUP}]\n{CPU} = a:b\n[{GROUP}.more]\nOther = c:d\n")
    program = (
        "import sys\n"
        "from sardonyx.providers.entry_points import entry_points\n"
        "before = 'importlib.metadata' in sys.modules\n"
        f"sys.path[:] = [{str(tmp_path)!r}]\n"
        f"print(list(entry_points({GROUP!r}, {CPU!r})), before, 'importlib.metadata' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] False False"
