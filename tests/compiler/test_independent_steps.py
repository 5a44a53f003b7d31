"""Steps between two meetings of the thread pool touch no byte that another one of them writes, element by element."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.compiler import assembly
from sardonyx.compiler.bound_step import BoundStep, Buffer, Look, tensor_over
from tests.compiler.small_models import SMALL_MODELS

Marks = dict[int, np.ndarray]  # who writes a byte, by where it lies: the arena, or one of the outputs

NOBODY, CALLER = -1, -2


def bytes_of(buffer: Buffer, look: Look, offsets: Mapping[Buffer, int]) -> tuple[int, np.ndarray] | None:
    """Where a tensor lies, and the numbers of its bytes there; None where nobody writes."""
    root, start = buffer.settled()
    if root.kind not in ("arena", "output"):
        return None
    dtype, shape, strides, offset = look
    places = np.zeros(1, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        places = (places[:, None] + np.arange(size) * stride * dtype.itemsize).ravel()
    places = np.unique(places)[:, None] + np.arange(dtype.itemsize)
    start += offset + (offsets[root] if root.kind == "arena" else 0)
    return (0 if root.kind == "arena" else 1 + root.index), start + places.ravel()


def touched(
    refs: Sequence[int], looks: Sequence[Look], step: BoundStep, offsets: Mapping[Buffer, int]
) -> Iterator[tuple[int, np.ndarray]]:
    for ref, look in zip(refs, looks, strict=True):
        found = bytes_of(step.buffers[ref], look, offsets)
        if found is not None and found[1].size:
            yield found


def check_phase(phase: Sequence[BoundStep], offsets: Mapping[Buffer, int]) -> None:
    """AssertionError where a step writes what another thread may be reading or writing."""
    if len(phase) == 1:
        return
    owners = [CALLER if step.form.alone else number for number, step in enumerate(phase)]
    marks: Marks = {}
    for owner, step in zip(owners, phase, strict=True):
        for space, places in touched(step.form.written_refs, step.form.writes, step, offsets):
            writer = marks.setdefault(space, np.full(0, NOBODY))
            if len(writer) <= places.max():
                writer = marks[space] = np.append(writer, np.full(int(places.max()) + 1 - len(writer), NOBODY))
            before = writer[places]
            assert np.all((before == NOBODY) | (before == owner)), f"{step.label} writes what another step writes"
            writer[places] = owner
    for owner, step in zip(owners, phase, strict=True):
        for space, places in touched(step.form.read_refs, step.form.reads, step, offsets):
            writer = marks.get(space, np.full(0, NOBODY))
            before = writer[places[places < len(writer)]]
            assert np.all((before == NOBODY) | (before == owner)), f"{step.label} reads what another step writes"


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each phase of the plans has that are made, all of which are checked."""
    seen: list[int] = []
    find = assembly.find_barriers

    def checking(steps: Sequence[BoundStep], offsets: Mapping[Buffer, int], *alone: Any) -> list[bool]:
        barriers = find(steps, offsets, *alone)
        starts = [0, *(number for number, is_met in enumerate(barriers) if is_met and number), len(steps)]
        for first, end in itertools.pairwise(starts):
            check_phase(steps[first:end], offsets)
            seen.append(end - first)
        return barriers

    monkeypatch.setattr(assembly, "find_barriers", checking)
    return seen


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_steps_of_small_models_between_meetings(name: str, branches: bool, phases: list[int]) -> None:
    small = SMALL_MODELS[name]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    if branches:
        options.execution_mode, options.inter_op_num_threads = ort.ExecutionMode.ORT_PARALLEL, 2
    session = ort.InferenceSession(small.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for sizes in small.sizes:
        session.run(None, small.inputs(sizes))
    assert phases


def test_the_check_sees_what_nobody_waited_for() -> None:
    dtype, buffer = np.dtype(np.float32), Buffer(64)

    def step(reads: Sequence[Look], writes: Sequence[Look]) -> BoundStep:
        return BoundStep.of(
            "one",
            0,
            [],
            [tensor_over(buffer, look) for look in reads],
            [tensor_over(buffer, look) for look in writes],
            (),
            None,
            1,
            chunks=2,
            claim=1,
        )

    even, odd = (dtype, (8,), (2,), 0), (dtype, (8,), (2,), 4)
    check_phase([step([], [even]), step([], [odd])], {buffer: 0})
    with pytest.raises(AssertionError, match="another step writes"):
        check_phase([step([], [even]), step([], [(dtype, (1,), (1,), 56)])], {buffer: 0})
    with pytest.raises(AssertionError, match="reads what another step writes"):
        check_phase([step([], [even]), step([even], [odd])], {buffer: 0})
