"""Which files are the source of the package."""

from __future__ import annotations

from pathlib import Path

from sardonyx.runtime.files.source_files import source_files


def test_they_are_those_that_pathlib_finds_in_its_order(tmp_path: Path) -> None:
    for name in ("b/x.py", "b-a/x.py", "b/c/y.py", "a.py", "b.py", "b/data.txt", "__pycache__/a.cpython-311.pyc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "link").symlink_to(tmp_path / "b", target_is_directory=True)
    found = source_files(str(tmp_path))
    assert found == [str(path) for path in sorted(tmp_path.rglob("*.py")) if "link" not in path.parts]
    assert len(found) == 5
