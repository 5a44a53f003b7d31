"""Which ONNX file of a folder is run."""

from __future__ import annotations

from pathlib import Path

from sardonyx import errors

_USUAL = ("onnx/model.onnx", "model.onnx", "model_optimized.onnx")


def find_model(folder: Path, file_name: str | None = None) -> Path:
    """The file named, or `onnx/model.onnx`, `model.onnx`, or the only one that there is.

    `errors.NoSuchFile` names the files that are there.
    """
    there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx")) if folder.is_dir() else []
    wanted = _USUAL if file_name is None else (file_name, f"onnx/{file_name}")
    for name in wanted:
        if name in there:
            return folder / name
    if file_name is None and len(there) == 1:
        return folder / there[0]
    listed = f"there are {', '.join(there)}" if there else "there is no ONNX file at all"
    if file_name is None and there:
        raise errors.NoSuchFile(f"{folder} has several ONNX files and none has a usual name: {listed}; give file_name")
    raise errors.NoSuchFile(f"{folder} has no {wanted[0]}: {listed}")
