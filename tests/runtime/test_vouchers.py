"""Vouchers on a disk that is full, and those that say what none says."""

from __future__ import annotations

import errno
import os
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sardonyx.runtime.files import opening
from sardonyx.runtime.files.vouchers import Voucher, Vouchers

DIGEST = "0" * 64


def test_a_full_disk_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(FileIO):
        def write(self, text: Any) -> NoReturn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Vouchers(str(tmp_path)).note_made("1" * 64)
    before = sorted((tmp_path / "engines").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(opening, "FileIO", Full)
        Vouchers(str(tmp_path)).note_made(DIGEST)
    assert sorted((tmp_path / "engines").iterdir()) == before
    Vouchers(str(tmp_path)).note_made(DIGEST)
    assert Vouchers(str(tmp_path)).find(DIGEST).made


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
def test_states_that_are_none_count_as_no_voucher(states: str, tmp_path: Path) -> None:
    vouchers = Vouchers(str(tmp_path))
    vouchers.note_made(DIGEST)
    (path,) = (tmp_path / "engines").iterdir()
    path.write_text(f'{{"digest": "{DIGEST}", "made": true, "states": {states}}}')
    assert vouchers.find(DIGEST) == Voucher()
    vouchers.note_made(DIGEST)
    assert vouchers.find(DIGEST).made
