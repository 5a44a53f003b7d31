"""What all tests share."""

from __future__ import annotations

import gc

import pytest

from sardonyx.api.engines import engine_store
from sardonyx.compiler.choice import tuned
from sardonyx.compiler.llvm.library import forget_kernels

gc.disable()  # until all tests are known: nothing that collecting them makes goes again

# Sessions of tests are made from their models, however often they come; those of engines have tests of their own.
engine_store.LEAST_SECONDS = float("inf")

# Work is cut by the default figures, whatever `sardonyx tune-kernels` measured of this machine.
tuned.read_sections = lambda key: {}


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _fresh_module() -> None:
    """Let the kernels of earlier modules' tests go: all of them together are more than a process can map.

    What is left then stays, above all the tests themselves, and the collector need not look at it ever again.
    """
    forget_kernels()
    gc.collect()
    gc.freeze()
