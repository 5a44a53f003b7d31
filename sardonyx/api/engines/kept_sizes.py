"""Plans of a kept engine for sizes that nobody has run yet, made in the background after the first runs.

They are those near to the sizes that were run: where one dimension, or what goes with it, is another one. Work and rest
take turns, so that runs have the processors, and Python, nearly to themselves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from sardonyx.api.building.built import Built
from sardonyx.api.building.signature import Declared
from sardonyx.api.engines.engine_sizes import Coverage, SizePlanner
from sardonyx.api.engines.shape_profiles import USUAL, Profile, Shape
from sardonyx.compiler.stored.sized_plans import SizedPlans
from sardonyx.compiler.stored.stored_program import StoredProgram

# Sizes that a kept engine has plans for beside those that were run, and the seconds of processor time that they take at
# most.
MOST_SIZES = 1024
MOST_SECONDS = 20.0
# The latest runs whose sizes they are near to.
MOST_RAN = 4
# For each second of work so many of rest, and so many while the process computes otherwise: runs on all processors wait
# for the work.
REST, BUSY_REST = 9.0, 99.0
# It does where it takes more than this share of a processor in a part of the rest.
_PIECE_SECONDS, _BUSY_SHARE = 0.1, 0.1
# Bytes of constants that they may bring along, such as weights packed in another way.
_MOST_CONSTANT_BYTES = 64 << 20

# How far sizes go at least: those of dimensions that come first in all inputs of several, as batches do, and others.
_BATCHES, _LENGTHS = 8, 512


def profile_around(inputs: Sequence[Declared], shapes: Mapping[str, Shape]) -> Profile | None:
    """The sizes of inputs that may come where these were run; None where all sizes are fixed, or one is not known."""
    if any(value.name not in shapes or value.dims is None for value in inputs):
        return None
    firsts = [value.dims[0] for value in inputs if value.dims is not None and len(value.dims) > 1]
    rest = {dim for value in inputs for dim in (value.dims or ())[1 if len(value.dims or ()) > 1 else 0 :]}
    batches = {dim for dim in firsts if isinstance(dim, str)} - rest
    found: dict[str, tuple[Shape, Shape, Shape]] = {}
    for value in inputs:
        shape = shapes[value.name]
        sizes = []
        for dim, size in zip(value.dims or (), shape, strict=True):
            least = _BATCHES if dim in batches else _LENGTHS
            sizes.append((size, size) if isinstance(dim, int) else (min(1, size), max(2 * size, least)))
        found[value.name] = tuple([low for low, _ in sizes]), shape, tuple([high for _, high in sizes])
    is_fixed = all(least == largest for least, _, largest in found.values())
    return None if is_fixed else Profile(found)


class Pace:
    """Rests after work, until the process ends: longer where the process has other things to do."""

    def __init__(self, ends: threading.Event) -> None:
        self._ends, self._began = ends, time.thread_time()

    def __call__(self, done: int, whole: int) -> bool:
        left = BUSY_REST * (time.thread_time() - self._began)
        while left > 0 and not self._ends.is_set():
            piece = min(left, _PIECE_SECONDS)
            before = time.process_time()
            self._ends.wait(piece)
            is_busy = time.process_time() - before > _BUSY_SHARE * piece
            left -= piece if is_busy else piece * BUSY_REST / REST
        self._began = time.thread_time()
        return not self._ends.is_set()


def planned(
    built: Built, program: StoredProgram, ran: Sequence[Mapping[str, Shape]], ends: threading.Event
) -> tuple[SizedPlans, list[Coverage]]:
    """Plans for sizes near to those of runs with inputs of these shapes, and how many of those there are; StoppedError
    where the process `ends` meanwhile."""
    planner = SizePlanner(built, program, MOST_SIZES, MOST_SECONDS, Pace(ends))
    profiles = [one for one in (profile_around(built.signature.inputs, shapes) for shapes in ran) if one is not None]
    for profile in profiles:
        planner.bound_constants({name: three[USUAL] for name, three in profile.shapes.items()}, _MOST_CONSTANT_BYTES)
    found = [planner.cover(profile, nearest=True) for profile in profiles]
    return planner.plans, found or [Coverage(0, 0, "no sizes are known that may come")]
