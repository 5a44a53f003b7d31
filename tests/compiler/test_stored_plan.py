"""What of a plan can be kept for another process, and how its memory is divided into pieces."""

from __future__ import annotations

import mmap
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import sardonyx as ort
from sardonyx.compiler.llvm.library import library
from sardonyx.compiler.stored import sized_plans
from sardonyx.compiler.stored import stored_plan as subject
from sardonyx.compiler.stored.constant_places import NotStorableError, constant_places
from sardonyx.compiler.stored.stored_plan import StoredPlans, stored_plans
from sardonyx.runtime.files.opening import map_file
from sardonyx.runtime.memory.mapped_pages import MappedRange, mapped_ranges
from sardonyx.runtime.native.native_segment import NativeSegment, PlanKey, ReadyPlan
from tests.api.size_models import session, write_transformer

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
graph (float[n, 3] x) => (float[n, 3] y)
<float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> { z = MatMul(x, w) y = Relu(z) }
"""


def ready_plan() -> ReadyPlan:
    session = ort.InferenceSession(onnx.parser.parse_model(MODEL).SerializeToString())
    session.run(None, {"x": np.ones((5, 3), np.float32)})
    (step,) = session._session().plan.steps
    assert isinstance(step.call, NativeSegment)
    return step.call.plan_for(((5, 3),))


def stored(ready: ReadyPlan) -> StoredPlans:
    return stored_plans({PlanKey(0, ((5, 3),)): ready}, library(), library(purpose="runtime"), ())


def test_constants_and_kernels_have_no_addresses() -> None:
    ready = ready_plan()
    found = stored(ready)
    words = found.tables[0].view(np.int64)
    for range_ in mapped_ranges():
        if range_.start > 1 << 32 and range_.end < 1 << 63:
            assert not ((words >= range_.start) & (words < range_.end)).any()
    weights = np.arange(1, 10, dtype=np.float32)
    held = b"".join(part.tobytes() for part in found.constants)
    assert all(value.tobytes() in held for value in weights)
    (plan,) = found.content["plans"]
    assert plan["shapes"] == ((5, 3),)
    assert plan["outputs"] == [["float32", (5, 3)]]


def test_constants_keep_the_memory_that_they_read() -> None:
    ready = ready_plan()
    one, spread_out = np.arange(64.0), np.broadcast_to(np.arange(3.0), (40_000, 3))
    kept = weakref.ref(one)
    found = stored_plans({PlanKey(0, ((5, 3),)): ready}, library(), library(purpose="runtime"), (), [one, spread_out])
    wanted, constants = spread_out.tobytes(), found.constants
    del one, spread_out, found
    assert kept() is not None
    assert any(part.tobytes() == wanted for part in constants)


def test_another_address_is_refused() -> None:
    ready = ready_plan()
    words = ready.plan.words.copy()
    given = {word for word, _, _ in constant_places(ready.source.bound)} | set(ready.plan.fixups[:, 0].tolist())
    free = next(word for word in range(len(words)) if word not in given)
    words[free] = ready.plan.address
    with pytest.raises(NotStorableError, match="takes an address as a number"):
        stored(replace(ready, plan=replace(ready.plan, words=words)))


def test_a_plan_unlike_its_steps_is_refused() -> None:
    ready = ready_plan()
    words = ready.plan.words.copy()
    words[constant_places(ready.source.bound)[0][0]] += 64
    with pytest.raises(NotStorableError, match="does not follow its steps"):
        stored(replace(ready, plan=replace(ready.plan, words=words)))


def test_what_overlaps_is_one_piece_in_one_home_only() -> None:
    file = MappedRange(1000, 2000, 0, "model.onnx")
    given = [
        subject._Range(1900, 2000, file),
        subject._Range(2000, 2100, None),
        subject._Range(2100, 2200, None),
        subject._Range(1000, 1950, file),
        subject._Range(2300, 2400, None),
        subject._Range(2050, 2150, None),
        subject._Range(2200, 2300, None),
    ]
    ranges, numbers = subject._joined(given)
    assert ranges == [
        subject._Range(1000, 2000, file),
        subject._Range(2000, 2200, None),
        subject._Range(2200, 2300, None),
        subject._Range(2300, 2400, None),
    ]
    assert numbers == [0, 1, 1, 0, 3, 1, 2]


def test_equal_bytes_are_one_piece() -> None:
    rng = np.random.default_rng(0)
    one, unlike = (rng.integers(0, 255, 1003, np.uint8) for _ in range(2))
    other, last = one.copy(), one.copy()
    last[-1] ^= 1  # which no sum of whole words shows
    arrays = (one, unlike, other, last)
    given = [subject._Range(array.ctypes.data, array.ctypes.data + array.size, None) for array in arrays]
    homes, pieces, constants = subject._pieces(given, arrays)
    assert homes == [0, 1, 0, 2]
    held = b"".join(part.tobytes() for part in constants)
    for home, array in zip(homes, arrays, strict=True):
        piece = pieces[home]
        assert piece.start % 128 == 0
        assert held[piece.start : piece.start + piece.nbytes] == array.tobytes()


def test_mapped_files_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a file"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    view = np.frombuffer(map_file(path), np.uint8)
    address = view.__array_interface__["data"][0]
    (found,) = [one for one in mapped_ranges() if one.path == str(path)]
    assert found.start == address
    assert found.offset == 0
    part = view[mmap.PAGESIZE : 2 * mmap.PAGESIZE]
    assert subject._range(part, address + 2 * mmap.PAGESIZE, [found]).file == found


def test_memory_of_overlapping_arrays_counts_once() -> None:
    extent = sized_plans._Extent()
    for low, high, nbytes in ((100, 200, 100), (300, 400, 200), (150, 180, 200), (190, 310, 300), (500, 501, 301)):
        extent.add(low, high)
        assert extent.nbytes == nbytes
    extent.add(0, 1000)
    assert extent.nbytes == 1000


def test_a_plan_without_steps_is_kept_with_the_constants_that_it_has(tmp_path: Path) -> None:
    """Constants that depend on sizes are made anew where the steps of such a plan are bound."""
    write_transformer(tmp_path / "model.onnx")
    made = session(tmp_path / "model.onnx", {"sardonyx.engine_cache": "0"})
    (step,) = made._session().plan.steps
    assert isinstance(step.call, NativeSegment)
    plans = {}
    for length in (5, 9, 16, 23):
        shapes = tuple((1, length) for _ in step.call.names)
        plans[PlanKey(0, shapes)] = step.call.plan_for(shapes)
    assert any(ready.source.bound.constant_words is not None for ready in plans.values())
    for ready in plans.values():
        bound = ready.source.bound
        if bound.constant_words is None:
            continue
        places = subject._places_of(ready)
        assert [word for word, _, _ in places] == bound.constant_words.tolist()
        for word, array, address in places:
            low, high = np.lib.array_utils.byte_bounds(array)
            assert low <= address <= high
            assert ready.plan.words[word] == address
