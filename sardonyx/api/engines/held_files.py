"""The files of a model as they were when its session began."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from sardonyx import errors
from sardonyx.runtime.file_state import file_state, state_of
from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.files.opening import open_file
from sardonyx.runtime.memory.mapped_pages import FileMap, file_map, map_open_file


class HeldFiles:
    """Files that are mapped, so that they outlive their names."""

    def __init__(self, states: Mapping[str, Sequence[int]]) -> None:
        """`states` by path, as `file_state` gives them; OSError where a file is not like that."""
        self._states = {path: list(state) for path, state in states.items()}
        self.views = {path: _mapped(path, state) for path, state in self._states.items()}
        self.in_use: list[FileMap] = []  # those that somebody reads

    def array(self, path: str) -> Bytes:
        """The bytes of a file."""
        view = self.views[path]
        one = file_map(view)
        if one is not None and one not in self.in_use:
            self.in_use.append(one)
        return np.frombuffer(view, np.uint8)

    def changed(self) -> list[str]:
        """The paths that lead to other contents now, or nowhere."""
        return [path for path, state in self._states.items() if file_state(path) != state]

    def check_whole(self) -> None:
        """`Fail` where old contents are gone, because the same file was written to."""
        for path in self.changed():
            now = file_state(path)
            if now is not None and now[3:] == self._states[path][3:]:
                raise errors.Fail(
                    f"{path} was written to since this session began, which now needs to read it again (for other "
                    "sizes, fewer outputs or an error): make the session anew"
                )


def _mapped(path: str, state: Sequence[int]) -> memoryview:
    """A file, mapped; OSError unless it is in this state."""
    with open_file(path) as file:
        if state_of(os.fstat(file.fileno())) != state:
            raise FileNotFoundError(f"{path} has changed")
        return map_open_file(file.fileno(), path)
