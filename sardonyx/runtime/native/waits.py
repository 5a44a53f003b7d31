"""How long runs waited for what compiles: a plan for new sizes was bound, the model loaded, kernels were compiled.

What compiles tells this thread that it works (`note_plan`, `note_model`); a run looks at that before and after it asks
for a plan.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.forks import free_in_child

# Waits of a session that are kept, the latest ones.
MOST_WAITS = 32


class _Work(threading.local):
    """What compiles has done on this thread so far."""

    plans = 0
    models = 0


_WORK = _Work()


def note_plan() -> None:
    """A plan was bound on this thread."""
    _WORK.plans += 1


def note_model() -> None:
    """A model was loaded and compiled on this thread, which a session had done without so far."""
    _WORK.models += 1


@dataclass(frozen=True)
class Wait:
    """One run that waited: for how many seconds, for plans of which `sizes`, how many kernels were compiled or loaded
    meanwhile, and whether the model had to be loaded first."""

    seconds: float
    sizes: str
    kernels: int
    loads_model: bool

    def __str__(self) -> str:
        kernels = f"{self.kernels} new kernel{'' if self.kernels == 1 else 's'}"
        loads = ", for which the model was loaded" if self.loads_model else ""
        return f"in {self.seconds * 1e3:.0f} ms, with {kernels}{loads}: {self.sizes}"


class Waits:
    """The waits of one session's runs; `kernels` counts those that were compiled or loaded in the process so far."""

    def __init__(self, kernels: Callable[[], int]) -> None:
        self._kernels = kernels
        self._lock = free_in_child(threading.Lock())
        self._latest: deque[Wait] = deque(maxlen=MOST_WAITS)
        self.count = 0
        self.seconds = 0.0
        self.kernels = 0

    @property
    def latest(self) -> list[Wait]:
        """Those that are kept, in order."""
        with self._lock:
            return list(self._latest)

    def begin(self) -> Begun:
        """A run asks for a plan."""
        return Begun(self, time.perf_counter(), _WORK.plans, _WORK.models, self._kernels())

    def _end(self, begun: Begun, sizes: str) -> Wait | None:
        if _WORK.plans == begun.plans and _WORK.models == begun.models:
            return None
        seconds = time.perf_counter() - begun.time
        wait = Wait(seconds, sizes, self._kernels() - begun.kernels, _WORK.models != begun.models)
        with self._lock:
            self._latest.append(wait)
            self.count += 1
            self.seconds += seconds
            self.kernels += wait.kernels
        return wait


@dataclass(frozen=True)
class Begun:
    """What there was when a run asked for a plan."""

    waits: Waits
    time: float
    plans: int
    models: int
    kernels: int

    def end(self, sizes: str) -> Wait | None:
        """The plan for `sizes` is there; the wait, or None where nothing was compiled for it."""
        return self.waits._end(self, sizes)


def described(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> str:
    """Sizes of inputs as messages tell them."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in zip(names, shapes, strict=True))
