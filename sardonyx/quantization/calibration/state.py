"""A file that holds how far a calibration has come, from which a later process goes on."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.runtime.files.opening import open_file, replacing

_HEADER = "header"
_FORMAT = 1


@dataclass(frozen=True)
class StateFile:
    """The file at `path`, which is written after every `every` samples and at the end.

    `identity` describes what is calibrated and how: a file of something else is refused.
    """

    path: Path
    every: int
    identity: str

    def save(self, samples: int, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Write the statistics of so many samples, whole or not at all; `errors.Fail` where that fails."""
        header = json.dumps({"format": _FORMAT, "identity": self.identity, "samples": samples})
        content: dict[str, Any] = {_HEADER: np.array(header), **arrays}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                np.savez(file, **content)
        except OSError as error:
            raise errors.Fail(
                f"Saving the state of the calibration to {self.path} failed: {error.strerror or error}"
            ) from error

    def load(self) -> tuple[int, dict[str, np.ndarray[Any, Any]]] | None:
        """How many samples are in the file, and their statistics; None where there is no file.

        `errors.InvalidArgument` for a file of another calibration, or of none.
        """
        try:
            with open_file(self.path) as file, np.load(file, allow_pickle=False) as found:
                arrays = {name: found[name] for name in found.files}
            header = json.loads(str(arrays.pop(_HEADER)))
            identity, samples = header["identity"], int(header["samples"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidQuantization(
                f"{self.path} holds no state of a calibration ({type(error).__name__}: {error}): delete it to begin "
                "anew, or name another file"
            ) from error
        if header.get("format") != _FORMAT or identity != self.identity:
            raise InvalidQuantization(
                f"{self.path} holds the state of a calibration of another model or with other options: delete it to "
                "begin anew, or name another file"
            )
        return samples, arrays


def identity_of(structure: bytes, *options: object) -> str:
    """A text that is equal for equal calibrations: of a model's bytes without its large weights, and the options."""
    digest = hashlib.sha256(structure)
    digest.update(repr(options).encode())
    return digest.hexdigest()


def file_stamp(path: str | os.PathLike[str]) -> tuple[int, int]:
    """What tells a file from a later version of it."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns
