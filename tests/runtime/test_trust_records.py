"""Trust records on a disk that is full, and those that say what none says."""

from __future__ import annotations

import errno
import os
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sardonyx.runtime.files import opening
from sardonyx.runtime.files.trust_records import TrustRecord, TrustRecords

DIGEST = "0" * 64


def test_a_full_disk_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(FileIO):
        def write(self, text: Any) -> NoReturn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    TrustRecords(str(tmp_path)).note_made("1" * 64)
    before = sorted((tmp_path / "engines").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(opening, "FileIO", Full)
        TrustRecords(str(tmp_path)).note_made(DIGEST)
    assert sorted((tmp_path / "engines").iterdir()) == before
    TrustRecords(str(tmp_path)).note_made(DIGEST)
    assert TrustRecords(str(tmp_path)).find(DIGEST).made


@pytest.mark.parametrize(
    "states",
    [
        "[" * 60_000,
        "[[Infinity]]",
        "[[1e400]]",
        "[[1.5]]",
        '["12"]',
        "[[null]]",
        "[3]",
        "3",
        '{"a": 1}',
        "[" + "9" * 5000,
    ],
)
def test_states_that_are_none_count_as_no_trust_record(states: str, tmp_path: Path) -> None:
    trust_records = TrustRecords(str(tmp_path))
    trust_records.note_made(DIGEST)
    (path,) = (tmp_path / "engines").iterdir()
    path.write_text(f'{{"digest": "{DIGEST}", "made": true, "states": {states}}}')
    assert trust_records.find(DIGEST) == TrustRecord()
    trust_records.note_made(DIGEST)
    assert trust_records.find(DIGEST).made
