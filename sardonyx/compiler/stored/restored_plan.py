"""Native plans from an earlier process: see `stored_plan`, which needs what compiles; this does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.stored.restored_sizes import RestoredSizes
from sardonyx.runtime.dtype_names import dtype_called
from sardonyx.runtime.files.engine_file import Bytes
from sardonyx.runtime.memory.constant_memory import HeldConstant
from sardonyx.runtime.native.native_image import ImageError, NativeImage
from sardonyx.runtime.native.native_segment import PlanKey, ReadyPlan
from sardonyx.runtime.native_plan import FIXUP_WORDS, STEP_WORDS, NativePlan, StepColumn, Words

if TYPE_CHECKING:
    from sardonyx.compiler.stored.constant_names import Homes
    from sardonyx.compiler.stored.offered_constants import OfferedConstants

Array = np.ndarray[Any, Any]


class NotRestorableError(Exception):
    """Why plans cannot be used in this process."""


def adopt_image(content: Mapping[str, Any] | None, image: Bytes, libraries: Mapping[str, KernelLibrary]) -> None:
    """Give libraries, by what they are for, the kernels of an image that `stored_plans` made, where they lack one.

    Where the image cannot be loaded, or where there is none, kernels come from the cache, or are compiled.
    """
    if content is None:
        return
    if all(library.known(key) is not None for name, library in libraries.items() for key in content[name]):
        return
    try:
        code = NativeImage(image, [(place, name) for place, name in content["slots"]])
    except ImageError:
        return
    for name, library in libraries.items():
        library.adopt({key: code.address + place for key, place in content[name].items()}, code)


class RestoredPlans:
    """The plans and arrays of `stored_plans`, each made when it is asked for."""

    def __init__(
        self,
        content: Mapping[str, Any],
        sections: Mapping[str, Bytes],
        library: KernelLibrary,
        mapped: Callable[[str], Bytes],
        plan_again: Callable[[PlanKey], ReadyPlan],
    ) -> None:
        """NotRestorableError where a kernel is not there any more, or a piece of memory lies outside its home.

        `sections` are those of the engine, of which these are "tables", "constants" and, if it has that, "made".
        `mapped` gives a file of the model; `plan_again` a plan made anew, which tells what is not kept: the errors of
        kernels and what a profile says.
        """
        tables, constants = sections["tables"], sections["constants"]
        kernels = [library.kept(key) for key in content["kernels"]]
        if None in kernels:
            raise NotRestorableError("the code of a kernel is gone")
        self._kernels = np.array(kernels, np.int64)
        self.plan_again = plan_again
        self._owners: list[Any] = [library, constants]
        bases: list[int] = []
        self._pieces: list[Bytes] = []
        for start, nbytes, file in content["pieces"]:
            home = constants if file is None else mapped(file)
            if not 0 <= start <= start + nbytes <= home.size:
                raise NotRestorableError("a constant lies outside its file")
            self._pieces.append(home[start : start + nbytes])
            self._owners.append(home if file is None else self._pieces[-1])
            bases.append(int(home.__array_interface__["data"][0]) + start)
        self._bases = np.array(bases, np.int64)
        self._made = sections.get("made")
        self._arrays = content["arrays"]
        self._stored: dict[PlanKey, tuple[Mapping[str, Any], Bytes]] = {}
        place = 0
        for plan in content["plans"]:
            size = 8 * sum(plan["tables"])
            self._stored[key_of(plan)] = plan, tables[place : place + size]
            place += size
        self._sizes = RestoredSizes(content["sizes"], tables[place:])

    def held_constants(self) -> Iterator[HeldConstant]:
        """What is kept of the model's files, and what was made of that."""
        _, constants, *pieces = self._owners
        yield HeldConstant("packed", constants)
        yield from (HeldConstant("model", piece) for piece in pieces if piece is not constants)

    def offers(self, homes: Homes | None) -> OfferedConstants | None:
        """The constants that were made for kernels; `homes` as of `constant_name`."""
        if self._made is None:
            return None
        from sardonyx.compiler.stored.offered_constants import OfferedConstants  # for sessions that compile after all

        return OfferedConstants(self._made, self._pieces, homes)

    def plan(self, key: PlanKey) -> ReadyPlan | None:
        """The plan of a segment for such inputs; None where there is none."""
        found = self._stored.get(key)
        if found is not None:
            content, tables = found
            known = {place: self._array(array) for place, array in content["known"]}
            return self._restored(key, content, tables.view(np.int64), known)
        row = self._sizes.find(key)
        return None if row is None else self._restored(key, *row)

    def array(self, number: int) -> Array:
        """One of the arrays that were stored with the plans; nobody writes to it."""
        return self._array(self._arrays[number])

    def _array(self, content: Mapping[str, Any]) -> Array:
        dtype, shape = dtype_called(content["dtype"]), tuple(content["shape"])
        if "strings" in content:
            array = np.array([*content["strings"], None], dtype)[:-1].reshape(shape)
        elif "place" in content:
            piece, start = content["place"]
            nbytes = math.prod(shape) * dtype.itemsize
            array = self._pieces[piece][start : start + nbytes].view(dtype).reshape(shape)
        else:
            array = np.empty(shape, dtype)
        array.flags.writeable = False
        return array

    def _restored(self, key: PlanKey, content: Mapping[str, Any], tables: Words, known: dict[int, Array]) -> ReadyPlan:
        ends = np.cumsum(content["tables"]).tolist()
        words, fixups, steps, places = np.split(tables, ends[:-1])
        places = places.reshape(-1, 3)
        words = words.copy()
        words[places[:, 0]] = self._bases[places[:, 1]] + places[:, 2]
        steps = steps.reshape(-1, STEP_WORDS).copy()
        steps[:, StepColumn.FUNCTION] = self._kernels[steps[:, StepColumn.FUNCTION]]
        plan = NativePlan(
            words=words,
            fixups=fixups.reshape(-1, FIXUP_WORDS),
            steps=steps,
            arena_bytes=content["arena_bytes"],
            scratch_bytes=content["scratch_bytes"],
            base_count=content["base_count"],
            labels=tuple(content["labels"]),
            owners=tuple(self._owners),
            nanoseconds=content["nanoseconds"],
            flush_denormals=content["flush_denormals"],
        )
        again = self.plan_again
        faults = tuple([_later(again, key, number) for number in range(content["faults"])])
        outputs = tuple((dtype_called(name), tuple(shape)) for name, shape in content["outputs"])
        return ReadyPlan(
            plan,
            outputs,
            known,
            lambda: again(key).works(),
            faults,
            plan.nanoseconds or 0,
            writers=lambda: content.get("writers"),
        )


def key_of(plan: Mapping[str, Any]) -> PlanKey:
    """Which plan it is that a description is of."""
    shapes = tuple(tuple(shape) for shape in plan["shapes"])
    return PlanKey(plan["segment"], shapes, tuple(map(bytes.fromhex, plan["contents"])))


def _later(plan_again: Callable[[PlanKey], ReadyPlan], key: PlanKey, place: int) -> Callable[[int], Any]:
    """The error of a fault, by the plan made anew."""
    return lambda number: plan_again(key).faults[place](number)
