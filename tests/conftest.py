"""What all tests share."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sardonyx.api.engines import engine_store, kept_sizes
from sardonyx.compiler.choice import tuned
from sardonyx.compiler.llvm import installed_packs
from sardonyx.compiler.llvm.library import forget_kernels

gc.disable()  # until all tests are known: nothing that collecting them makes goes again

# Sessions of tests are made from their models, however often they come; those of engines have tests of their own.
engine_store.LEAST_SECONDS = float("inf")

# Those that write engines do not rest for the sake of other work.
kept_sizes.BUSY_REST = 0.0

# Tests compile what they need, whatever comes ready with an installed distribution; packs have tests of their own.
os.environ[installed_packs.VARIABLE] = installed_packs.OFF

# Work is cut by the default figures, whatever `sardonyx tune-kernels` measured of this machine.
tuned.read_sections = lambda key: {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-of-the-machine",
        action="store_true",
        help="leave out tests that no mask changes: those that name their instruction sets, and those of none",
    )
    parser.addoption(
        "--add-results",
        metavar="FILE",
        type=Path,
        help="count the results of an earlier run in the closing line, too: the file that its --junit-xml wrote",
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--add-results")
    if path is not None and not path.is_file():
        raise pytest.UsageError(f"--add-results: there is no file {path}; the run that writes it did not end")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--only-of-the-machine"):
        return
    others = [item for item in items if _is_of_any_machine(item)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if not _is_of_any_machine(item)]


def _is_of_any_machine(item: pytest.Item) -> bool:
    """By a mark, or by a parameter `variant`, which is the name of an instruction set."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    marks = ("names_targets", "machine_neutral")
    return any(item.get_closest_marker(mark) for mark in marks) or bool(parameters.get("variant"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path = config.getoption("--add-results")
    if path is not None:
        for kind, report in _earlier_reports(path):
            terminalreporter.stats.setdefault(kind, []).append(report)


def _earlier_reports(path: Path) -> Iterator[tuple[str, pytest.TestReport]]:
    """What --junit-xml wrote of each test, as the terminal counts it."""
    for case in ElementTree.parse(path).iter("testcase"):
        parts = {part.tag: part.get("message", "") for part in case}
        kind = next((kind for tag, kind in _KINDS.items() if tag in parts), "passed")
        file, name = case.get("classname", ""), case.get("name", "")
        told = parts.get("skipped", "")
        longrepr = (file, 0, told) if kind == "skipped" else next(iter(parts.values()), None)
        outcome = "failed" if kind == "error" else kind
        yield kind, pytest.TestReport(f"{file}::{name}", (file, 0, name), {}, outcome, longrepr, "call")


_KINDS = {"failure": "failed", "error": "error", "skipped": "skipped"}


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _fresh_module() -> None:
    """Let the kernels of earlier modules' tests go: all of them together are more than a process can map.

    What is left then stays, above all the tests themselves, and the collector need not look at it ever again.
    Engines that are still being written are waited for, as some modules put other compilers in the place of this one.
    """
    for thread in threading.enumerate():
        if thread.name == "sardonyx-engine":
            thread.join(timeout=120)
    forget_kernels()
    gc.collect()
    gc.freeze()
