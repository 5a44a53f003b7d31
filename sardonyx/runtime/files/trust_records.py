"""Which engines a user may run code of: a note for each that was made here, beside the kernels.

An engine that is passed on holds machine code and tables that say where it writes. Whoever makes one on this machine
leaves a trust record in the user's own folder: the digest of the engine's head, which tells every byte of it. Engines
without one are models, and nothing more, unless the caller answers for them.

To read all of an engine each time would take longer than to load it. So a trust record also says which file was found
whole, of engines that are kept for the user as well, by its state. A file that differs, as a copy does, is read once
more; so is one that changed too short a while ago to show its next change.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import time
from collections.abc import Sequence

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.file_state import is_settled
from sardonyx.runtime.files.cache_folder import ENGINES, prepare_folder
from sardonyx.runtime.files.engine_file import SealedEngine
from sardonyx.runtime.files.opening import PRIVATE, open_private, replacing
from sardonyx.runtime.files.own_files import TRUST_RECORD, bound_folder
from sardonyx.runtime.json_text import parsed

_LARGEST = 64 << 10
_MOST_BYTES = 4 << 20
_STATES = 8  # files of one engine that are remembered


@dataclass(frozen=True)
class TrustRecord:
    """What is known of an engine: whether it was `made` here, and the states of files that were found whole."""

    made: bool = False
    states: Sequence[Sequence[int]] = ()

    def names(self, state: Sequence[int]) -> bool:
        """Whether a file of this state was found whole."""
        return list(state) in map(list, self.states)


class TrustRecords:
    """Those in a folder; without one, nothing is known and nothing kept."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder

    def note_made(self, digest: str) -> None:
        """An engine of this digest was made by this user."""
        self._write(digest, TrustRecord(True, self.find(digest).states))

    def may_run(self, sealed: SealedEngine, caller_answers: bool) -> bool:
        """Whether code of an engine may be run: it was made here and nobody else can change it, or the caller answers.

        DamagedError where it is not what was written, which is found out unless this file was whole before.
        """
        trust_record = self.find(sealed.digest)
        may = (trust_record.made and sealed.is_private) or caller_answers
        if may and sealed.state is not None and trust_record.names(sealed.state):
            return True
        sealed.verify()
        if may and sealed.state is not None:
            self.note_whole(sealed.digest, sealed.state)
        return may

    def was_whole(self, digest: str, state: Sequence[int]) -> bool:
        """Whether a file of this state was found to be the whole engine."""
        return self.find(digest).names(state)

    def note_whole(self, digest: str, state: Sequence[int]) -> None:
        """A file of this state was found to be the whole engine."""
        if is_settled(state, time.time()):
            trust_record = self.find(digest)
            self._write(digest, TrustRecord(trust_record.made, [state, *trust_record.states][:_STATES]))

    def find(self, digest: str) -> TrustRecord:
        """The trust record of an engine; an empty one where there is none that can be trusted."""
        path = self._path(digest)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if path is not None:
                with open_private(path) as file:
                    found = parsed(file.read(_LARGEST))
                if found["digest"] == digest:
                    states = [list(map(operator.index, one)) for one in found["states"][:_STATES]]
                    return TrustRecord(found["made"] is True, states)
        return TrustRecord()

    def _write(self, digest: str, trust_record: TrustRecord) -> None:
        """Keep a trust record; a folder that cannot be used is no error: the engine is read whole each time."""
        path = self._path(digest)
        if path is None or prepare_folder(folder := os.path.dirname(path)):
            return
        text = json.dumps({"digest": digest, "made": trust_record.made, "states": trust_record.states}).encode()
        with contextlib.suppress(OSError):
            with replacing(path, PRIVATE) as file:
                file.write(text)
            bound_folder(folder, TRUST_RECORD, _MOST_BYTES)

    def _path(self, digest: str) -> str | None:
        return None if self._folder is None else os.path.join(self._folder, ENGINES, digest[:40] + TRUST_RECORD)
