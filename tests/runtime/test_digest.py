"""Tests of the digest of what is small."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from sardonyx.runtime.files.digest import sha256


@pytest.mark.parametrize("text", [b"", b"a", b"engine" * 1000])
def test_it_is_that_of_openssl(text: bytes) -> None:
    assert sha256(text).hexdigest() == hashlib.sha256(text).hexdigest()
    assert sha256(text).digest() == hashlib.sha256(text).digest()


def test_openssl_is_not_loaded() -> None:
    program = "import sys; import sardonyx.runtime.files.digest; print('_hashlib' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"
