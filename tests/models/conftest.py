"""What the tests of Hugging Face models share."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator

import pytest

from tests.models.tiny_models import Folders, shared_folders


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Folders of tiny models by task; each is made once for all tests."""
    pytest.importorskip("torch", reason="the extra `models` is not installed")
    importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch
    pytest.importorskip("transformers", reason="the extra `models` is not installed")
    return shared_folders(lambda: tmp_path_factory.mktemp("tiny_models"))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT becomes KeyboardInterrupt, whatever those who run the tests do with it: what runs in the background of a
    shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
