"""What tuning finds, measured as a whole and kept where sessions look for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sardonyx.compiler.choice.tuned import SECTION
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.files.machine_file import drop, machine_key, write_section
from sardonyx.runtime.files.opening import StrPath
from sardonyx.runtime.threads.processors import default_threads
from sardonyx.tuning import ceilings as ceilings_of
from sardonyx.tuning.ceilings import Ceilings
from sardonyx.tuning.fitting import Fit, fit


@dataclass(frozen=True)
class Found:
    """The ceilings of the machine and the numbers that were fitted to it."""

    ceilings: Ceilings
    fit: Fit

    def as_dict(self) -> dict[str, Any]:
        """Everything in the types of JSON."""
        return {
            "ceilings": ceilings_of.as_section(self.ceilings),
            "tuning": {"gemm": asdict(self.fit.gemm), "rows": asdict(self.fit.rows)},
            "gains": dict(self.fit.gains),
        }


def measure(threads: int, progress: Callable[[str], None]) -> Found:
    """Measure for sessions of so many threads (0: as many as they have by default); `progress` is told what."""
    count = threads or default_threads()
    progress("ceilings")
    found = ceilings_of.measure(sorted({1, count}))
    return Found(found, fit(found, count, progress))


def keep(found: Found, where: StrPath | None = None) -> str | None:
    """Write what was found for the sessions of later processes; the file, None where it cannot be written."""
    ceilings_of.store(found.ceilings, where)
    return write_section(machine_key(host_target().key), SECTION, found.as_dict()["tuning"], where)


def forget(where: StrPath | None = None) -> str | None:
    """Remove what was kept of this machine; the file, None where there was none."""
    return drop(machine_key(host_target().key), where)
