"""What all tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sardonyx.api.engines import engine_store
from sardonyx.compiler.llvm.library import forget_kernels

# Sessions of tests are made from their models, however often they come; those of engines have tests of their own.
engine_store.LEAST_SECONDS = float("inf")


@pytest.fixture(autouse=True, scope="module")
def _kernels_of_a_module() -> Iterator[None]:
    """Let the kernels of a module's tests go with it: all of them together are more than a process can map."""
    yield
    forget_kernels()
    gc.collect()
