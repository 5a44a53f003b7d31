"""Vouchers on a disk that is full."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sardonyx.runtime.files.vouchers import Vouchers

DIGEST = "0" * 64


def test_a_full_disk_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(json, "dump", full)
        Vouchers(str(tmp_path)).note_made(DIGEST)
    assert list((tmp_path / "engines").iterdir()) == []
    Vouchers(str(tmp_path)).note_made(DIGEST)
    assert Vouchers(str(tmp_path)).find(DIGEST).made
