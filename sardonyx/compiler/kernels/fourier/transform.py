"""Fourier transforms of rows as steps of a plan.

Lengths of small factors whose rows fit into the second cache are one step. Longer ones are transforms of columns and
then of rows of a matrix (Bailey, "FFTs in external or hierarchical memory", 1990), those of large prime factors a
convolution with a chirp by transforms of a power of two (Bluestein, "A linear filtering approach to the computation
of the discrete Fourier transform", 1970).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler.binding import Array, Binder, Tensor
from sardonyx.compiler.kernels.fourier.butterflies import WRITTEN_OUT
from sardonyx.compiler.kernels.fourier.complex_product import complex_product
from sardonyx.compiler.kernels.fourier.factors import passes, radices, roots, split
from sardonyx.compiler.kernels.fourier.row_transform import After, Arguments, Before, TransformSpec, emit_transform
from sardonyx.compiler.kernels.pointwise import PointwiseKernel
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, type_of
from sardonyx.compiler.native.movement.copy import contiguous, copy_into
from sardonyx.kernel.evaluate import working_dtype
from sardonyx.kernel.expr import Input
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.memory import memory

# Elements that a chunk transforms at least: some microseconds of work.
_CHUNK_ELEMENTS = 16 << 10
# What an element of a matrix costs, which goes through memory some times more, compared to one of a step in one lane.
_MATRIX_COST = 5
_LEAST_MATRIX = 256  # elements
# Tables and intermediate values for each element of a transform: refused before they are made where they do not fit.
_NUMBERS_PER_ELEMENT = 16


@dataclass(frozen=True)
class Rows:
    """Signals of `length` elements of `parts` words (1: real, 2: complex), each of them contiguous.

    Row r lies ``r // inner * outer_step + r % inner * inner_step`` elements of memory behind the first.
    """

    tensor: Tensor
    count: int
    length: int
    parts: int
    inner: int
    outer_step: int
    inner_step: int

    @staticmethod
    def of(tensor: Tensor) -> Rows:
        """The rows of a contiguous value [..., length, parts]."""
        *outer, length, parts = tensor.shape
        count = math.prod(outer)
        return Rows(tensor, count, length, parts, max(1, count), 0, length * parts)


@dataclass(frozen=True)
class Transform:
    """What is asked for: the length; the inverse; `onesided` gives half of the spectrum, or takes it if `inverse`."""

    length: int
    inverse: bool = False
    onesided: bool = False

    @property
    def gives_real(self) -> bool:
        return self.inverse and self.onesided

    @property
    def results(self) -> int:
        """Elements of a row of the result."""
        return self.length // 2 + 1 if self.onesided and not self.inverse else self.length

    @property
    def result_parts(self) -> int:
        return 1 if self.gives_real else 2

    @property
    def scale(self) -> float:
        return 1.0 / self.length if self.inverse else 1.0


def transform_rows(binder: Binder, rows: Rows, window: Tensor | None, asked: Transform) -> Tensor:
    """Add the steps that transform rows, times a window of as many words; gives [rows, results, parts]."""
    needed = (rows.count + _NUMBERS_PER_ELEMENT) * asked.length * rows.tensor.dtype.itemsize
    memory.require(needed, "a Fourier transform")
    form = _short_form(binder.target, rows, asked)
    dtype = rows.tensor.dtype
    if form is not None and not _fills_lanes_by_columns(binder.target, dtype, rows.count, asked.length, form.length):
        return _one_step(binder, rows, window, asked, form)
    numbers = _as_complex(binder, rows, window, asked)
    result = _complex_transform(binder, numbers, asked.inverse)
    parts = result.reshaped((rows.count, asked.results, asked.result_parts), result.strides)
    kind = parts.dtype
    return PointwiseKernel([(Input(kind, 0) * asked.scale).cast(dtype)], [kind]).bind(binder, [parts])[0]


@dataclass(frozen=True)
class _Form:
    """How one step does a transform: the complex transform's length, what is done before and behind it, and words."""

    length: int
    before: Before
    after: After
    read: int
    read_apart: int
    clear_to: int
    written_apart: int
    half: int
    scale: float


def _short_form(target: Target, rows: Rows, asked: Transform) -> _Form | None:
    """How one step does it; None where it cannot."""
    length = asked.length
    half = length // 2
    pairs = length % 2 == 0
    if asked.gives_real:
        taken = min(rows.length, half + 1) * rows.parts
        apart = 3 - rows.parts
        if pairs:
            form = _Form(half, "pack", "", taken, apart, 2 * half + 2, 1, half, 1.0 / half)
        else:
            form = _Form(length, "mirror", "", taken, apart, 2 * length, 2, half, 1.0 / length)
    elif rows.parts == 1 and pairs and not asked.inverse:
        after: After = "unpack" if asked.onesided else "unpack all"
        form = _Form(half, "", after, min(rows.length, length), 1, length, 1, half, 1.0)
    else:
        taken = min(rows.length, length) * rows.parts
        form = _Form(length, "", "", taken, 3 - rows.parts, 2 * length, 1, half, asked.scale)
    if form.length > _longest(target) or radices(form.length) is None:
        return None
    return form


def _longest(target: Target) -> int:
    """Elements of the longest rows of which a vector's lanes, read and written, fit into the second cache."""
    return max(64, target.caches.l2 // (4 * target.vector_bits // 8))


def _fills_lanes_by_columns(target: Target, dtype: np.dtype[Any], count: int, length: int, done: int) -> bool:
    """Whether a matrix, whose columns and rows fill a vector's lanes, is faster than one step with a row in each lane.

    The step would do `done` elements, which are fewer than the length where real ones are taken for complex ones.
    """
    lanes = target.lanes(F64 if working_dtype(dtype) == np.float64 else F32)
    columns = split(length, _longest(target)) if length >= _LEAST_MATRIX else None
    if columns is None or columns * 2 < lanes:
        return False
    return count * _MATRIX_COST * length <= lanes * done


def _one_step(binder: Binder, rows: Rows, window: Tensor | None, asked: Transform, form: _Form) -> Tensor:
    dtype = rows.tensor.dtype
    type_ = type_of(dtype)
    assert type_ is not None
    spec = TransformSpec(type_, window is not None, form.before, form.after)
    lanes = binder.target.lanes(spec.working)
    result = binder.new(dtype, (rows.count, asked.results, asked.result_parts))
    split_length = asked.length if form.before == "pack" or form.after else 0
    plan = passes(form.length, WRITTEN_OUT, split_length, f"f{spec.working.nbytes}")
    numbers = binder.constant(plan.numbers)
    words = asked.results * asked.result_parts
    # The elements of the spectrum and one behind, and what whole squares write and read behind the last one.
    room = 2 * (max(asked.length, form.length) + 1) + 2 * lanes
    blocks = -(-rows.count // lanes)
    per_chunk = max(1, _CHUNK_ELEMENTS // (lanes * asked.length))
    clear_from = form.read if form.read_apart == 1 else 0
    binder.step(
        emit_transform,
        spec,
        Arguments(
            source=rows.tensor,
            result=result,
            window=window,
            numbers=numbers,
            rows=rows.count,
            blocks=blocks,
            per_chunk=per_chunk,
            inner=rows.inner,
            outer_step=rows.outer_step,
            inner_step=rows.inner_step,
            read_words=form.read,
            read_apart=form.read_apart,
            clear_from=clear_from,
            clear_to=form.clear_to,
            written_words=words,
            written_apart=form.written_apart,
            scale=form.scale,
            is_inverse=int(asked.inverse),
            half=form.half,
            room=room,
            own=plan.own,
            pass_count=plan.count,
            passes=plan.words,
        ),
        chunks=-(-blocks // per_chunk),
        scratch=2 * room * lanes * spec.working.nbytes,
        flops=5.0 * rows.count * form.length * math.log2(max(2, form.length)),
        detail=f"{rows.count} rows of {asked.length}, radices {' '.join(map(str, plan.radices)) or '1'}",
    )
    return result


def _as_complex(binder: Binder, rows: Rows, window: Tensor | None, asked: Transform) -> Tensor:
    """The rows as complex ones of the whole length in the working type: windowed, cut or filled with 0."""
    dtype = rows.tensor.dtype
    kind = working_dtype(dtype)
    outer = -(-rows.count // rows.inner)
    shape = (outer, rows.inner, rows.length, rows.parts)
    strides = (rows.outer_step, rows.inner_step, rows.parts, 1)
    x = rows.tensor.reshaped(shape, strides)
    if window is None:
        (x,) = PointwiseKernel([Input(dtype, 0).cast(kind)], [dtype]).bind(binder, [x])
    else:
        product = Input(dtype, 0).cast(kind) * Input(dtype, 1).cast(kind)
        across = window.reshaped((rows.length, rows.parts))
        (x,) = PointwiseKernel([product], [dtype, dtype]).bind(binder, [x, across])
    x = contiguous(binder, x).reshaped((rows.count, rows.length, rows.parts))
    half = asked.length // 2 + 1 if asked.gives_real else asked.length
    taken = min(half, rows.length)
    result = binder.new(kind, (rows.count, asked.length, 2))
    copy_into(binder, _part(x, 0, 0, taken), _part(result, 0, 0, taken))
    _zero(binder, _part(result, 0, taken, half))
    if rows.parts == 2:
        copy_into(binder, _part(x, 1, 0, taken), _part(result, 1, 0, taken))
    _zero(binder, _part(result, 1, taken if rows.parts == 2 else 0, half))
    if asked.gives_real:
        _complete(binder, result)
    return result


def _part(x: Tensor, part: int, first: int, last: int, step: int = 1) -> Tensor:
    """The real (0) or imaginary (1) parts of elements `first` up to `last`; backwards with a step of -1."""
    start = first if step > 0 else last - 1
    strides = (x.strides[0], x.strides[1] * step)
    offset = (start * x.strides[1] + part) * x.dtype.itemsize
    return x.reshaped((x.shape[0], max(0, last - first)), strides, offset)


def _zero(binder: Binder, x: Tensor) -> None:
    zero = binder.constant(np.zeros((1, 1), x.dtype))
    copy_into(binder, zero.reshaped(x.shape, (0, 0)), x)


def _complete(binder: Binder, x: Tensor) -> None:
    """The other half of spectra of real signals, whose first half is there."""
    length = x.shape[1]
    known = (length - 1) // 2 + 1
    ends = {0, length // 2} if length % 2 == 0 else {0}
    for end in ends:
        _zero(binder, _part(x, 1, end, end + 1))
    copy_into(binder, _part(x, 0, 1, known, -1), _part(x, 0, length - known + 1, length))
    if known > 1:
        negative = PointwiseKernel([-Input(x.dtype, 0)], [x.dtype])
        negative.bind_into(binder, [_part(x, 1, 1, known, -1)], [_part(x, 1, length - known + 1, length)])


def _complex_transform(binder: Binder, x: Tensor, inverse: bool) -> Tensor:
    """The transform of complex rows [rows, length, 2] of any length, not scaled."""
    length = x.shape[1]
    found = radices(length)
    longest = _longest(binder.target)
    asked = Transform(length, inverse)
    alone = _fills_lanes_by_columns(binder.target, x.dtype, x.shape[0], length, length)
    if found is not None and length <= longest and not alone:
        form = _short_form(binder.target, Rows.of(x), asked)
        assert form is not None
        return _one_step(binder, Rows.of(x), None, asked, replace(form, scale=1.0))
    columns = split(length, longest)
    return _by_chirp(binder, x, inverse) if columns is None else _in_columns(binder, x, columns, inverse)


def _in_columns(binder: Binder, x: Tensor, first: int, inverse: bool) -> Tensor:
    """As a matrix of `first` rows: its columns are transformed, multiplied by roots of unity, then its rows are."""
    count, length, _ = x.shape
    second = length // first
    columns = x.reshaped((count, second, first, 2), (length * 2, 2, second * 2, 1))
    inner = contiguous(binder, columns).reshaped((count * second, first, 2))
    inner = _complex_transform(binder, inner, inverse)
    turns = roots(np.arange(second)[:, None] * np.arange(first), length)
    inner = _multiplied(binder, inner, turns, first, conjugate=inverse)
    rows = inner.reshaped((count, first, second, 2), (length * 2, 2, first * 2, 1))
    outer = contiguous(binder, rows).reshaped((count * first, second, 2))
    outer = _complex_transform(binder, outer, inverse)
    turned = outer.reshaped((count, second, first, 2), (length * 2, 2, second * 2, 1))
    return contiguous(binder, turned).reshaped((count, length, 2))


def _by_chirp(binder: Binder, x: Tensor, inverse: bool) -> Tensor:
    """As a convolution with a chirp, by transforms of the next power of two that holds it."""
    length = x.shape[1]
    wide = 1 << (2 * length - 2).bit_length()
    squares = np.array([index * index % (2 * length) for index in range(length)], np.int64)
    chirp = roots(squares, 2 * length)
    response = np.zeros(wide, np.complex128)
    response[:length] = chirp[:, 0] - 1j * chirp[:, 1]
    response[wide - length + 1 :] = response[1:length][::-1]
    spectrum = np.fft.fft(response) / wide
    numbers = _multiplied(binder, x, chirp, length, wide, conjugate=inverse)
    numbers = _complex_transform(binder, numbers, False)
    # The chirp is symmetric, and so is its spectrum: the conjugate serves the inverse.
    numbers = _multiplied(binder, numbers, np.stack([spectrum.real, spectrum.imag], -1), wide, conjugate=inverse)
    numbers = _complex_transform(binder, numbers, True)
    return _multiplied(binder, numbers, chirp, length, conjugate=inverse)


def _multiplied(
    binder: Binder, x: Tensor, factors: Array, count: int, width: int = 0, *, conjugate: bool = False
) -> Tensor:
    """The first `count` elements of rows times rows of factors, which are used in turn; filled with 0 up to `width`."""
    numbers = binder.constant(np.ascontiguousarray(factors.reshape(-1), x.dtype))
    result = binder.new(x.dtype, (x.shape[0], width or count, 2))
    complex_product(binder, x, numbers, result, count, numbers.size // (2 * count), conjugate=conjugate)
    return result
