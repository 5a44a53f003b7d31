"""One call of the attention kernel: operands by strides, what is added to the scores, which keys a query sees."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.compiler.binding import SMALL_STEP_NS, Address, Binder, Tensor
from sardonyx.compiler.bound_step import Shifted
from sardonyx.compiler.kernels.attention.attention_spec import (
    KEYS,
    AppendArguments,
    AttentionArguments,
    AttentionSpec,
    BiasArguments,
    fixed_layout,
    round_up,
    scratch_layout,
)
from sardonyx.compiler.llvm.emitters import Emitter
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.types import F32, F64
from sardonyx.compiler.native.products.inner_products import allows_parts, product_of
from sardonyx.compiler.traced import larger
from sardonyx.light_dataclass import dataclass

emit_attention = Emitter("sardonyx.compiler.kernels.attention.attention_loops", "emit_attention", AttentionArguments)

# A key head with at most this many rows (queries times the query heads that share it) takes the form for few rows.
FEW_ROWS = 8

# The form for few rows writes its code out for every vector of a head: heads of more channels do not take it.
FEW_ROWS_SIZE = 512

# Chunks that a step should have where its rows allow, and the rows below which packing keys again costs too much.
_CHUNKS = 16
_ROWS_OF_A_CHUNK = 192
_ROWS_KEPT = 768

# Packing values costs more than it saves up to so many rows of a key head, and for values in so few pages.
_ROWS_WITHOUT_PACKING = 48
_PAGES_WITHOUT_PACKING = 1024

# Picoseconds that tell whether tiles of AMX are faster: of a multiply-add of vectors and of the parts in tiles, of a
# weight's way into parts, and of that of an element of queries, keys and values and of what adds to the results.
_VECTORS_PS, _TILES_PS, _WEIGHT_PS, _PARTS_PS = 14, 8, 144, 500

# What parts of keys and values may take of the second cache, from which every few rows read them.
_PART_OF_L2 = 0.75

# What a core does in a nanosecond, roughly: chunks that take no time are claimed several at once.
_FLOPS_PER_NS = 100.0
_BYTES_PER_NS = 50.0


@dataclass(frozen=True)
class Heads:
    """Queries, keys, values or results: `heads` of `size` channels for each of `rows` positions of a batch entry.

    Strides count elements; the channels of a head follow one another. `start` is the first element.
    """

    tensor: Tensor
    batch: int
    rows: int
    heads: int
    size: int
    strides: tuple[int, int, int]  # of batch, rows, heads
    start: int = 0

    @property
    def address(self) -> Address:
        return Address(self.tensor.buffer, self.tensor.offset + self.start * self.tensor.dtype.itemsize)

    def words(self, name: str) -> dict[str, Any]:
        """The fields of a record called `name`, `name_batch`, `name_row` and `name_head`."""
        batch, row, head = self.strides
        first = Shifted(self.tensor, self.start * self.tensor.dtype.itemsize)
        return {name: first, f"{name}_batch": batch, f"{name}_row": row, f"{name}_head": head}

    def as_tensor(self) -> Tensor:
        """The same memory as a tensor (batch, heads, rows, size)."""
        batch, row, head = self.strides
        nbytes = self.start * self.tensor.dtype.itemsize
        return self.tensor.reshaped((self.batch, self.heads, self.rows, self.size), (batch, head, row, 1), nbytes)

    def positions(self, begin: int, count: int) -> Heads:
        """`count` positions from `begin` on."""
        return replace(self, rows=count, start=self.start + begin * self.strides[1])


def heads_of_rows(tensor: Tensor, heads: int, name: str, first: int = 0, size: int | None = None) -> Heads:
    """`heads` heads from (batch, rows, width), the first at channel `first`; without a size, all of the width."""
    batch, rows, width = tensor.shape
    if size is None:
        if heads <= 0 or width % heads:
            raise ValueError(
                f"input '{name}' of shape {tensor.shape} does not divide into {heads} heads of "
                "(batch, length, heads * size)"
            )
        size = width // heads
    return Heads(tensor, batch, rows, heads, size, (tensor.strides[0], tensor.strides[1], size), first)


def heads_of_cache(tensor: Tensor) -> Heads:
    """(batch, heads, rows, size) as heads."""
    batch, heads, rows, size = tensor.shape
    return Heads(tensor, batch, rows, heads, size, (tensor.strides[0], tensor.strides[2], tensor.strides[1]))


@dataclass(frozen=True)
class Bias:
    """What is added to the scores: (batch or 1, heads or 1, queries or 1, keys), each row contiguous.

    Of a mask (bool, or integers of which those above 0 keep), `masked` is added where it rules out.
    """

    tensor: Tensor
    masked: float = float("-inf")

    def arguments(self) -> BiasArguments:
        batch, head, row = self.steps()
        return BiasArguments(bias=self.tensor, bias_batch=batch, bias_head=head, bias_row=row, bias_masked=self.masked)

    def steps(self) -> list[int]:
        """Strides of batch, heads and queries; 0 for what is shared."""
        return [
            0 if size == 1 else stride
            for size, stride in zip(self.tensor.shape[:3], self.tensor.strides[:3], strict=True)
        ]


@dataclass(frozen=True)
class Append:
    """What keys and values are made of on the way: a past (batch, heads, rows, size), contiguous, and new rows."""

    past_key: Tensor
    past_value: Tensor
    new_key: Heads
    new_value: Heads

    def arguments(self, near: int) -> AppendArguments:
        """`near`: bytes of caches, at most, that stay in the processor's own."""
        key, value = self.past_key, self.past_value
        return AppendArguments(
            past_rows=key.shape[2],
            near=near,
            past_key=key,
            past_key_batch=key.strides[0],
            past_key_head=key.strides[1],
            **self.new_key.words("new_key"),
            past_value=value,
            past_value_batch=value.strides[0],
            past_value_head=value.strides[1],
            **self.new_value.words("new_value"),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.past_key, self.past_value, self.new_key.tensor, self.new_value.tensor


@dataclass(frozen=True)
class Attention:
    """softmax(scale * query @ key' + biases) @ value into `output`.

    A query `i` stands at position `offset` + i, or, with `lengths` and `from_end`, so that the last query stands at
    the last key. It sees the keys from `left` before to `right` after its position (None: all), and of each batch
    entry only the first `lengths` + `length_add` keys. With `append`, the keys and values are caches that are written
    on the way: for `few_rows` only, where no key is left out.
    """

    query: Heads
    key: Heads
    value: Heads
    output: Heads
    scale: float
    biases: Sequence[Bias] = ()
    left: int | None = None
    right: int | None = None
    offset: int = 0
    lengths: Tensor | None = None
    length_add: int = 0
    from_end: bool = False
    softcap: float = 0.0
    sink: Tensor | None = None
    append: Append | None = None

    def spec(self, binder: Binder) -> AttentionSpec:
        storage, made, lengths = self.query.tensor.dtype, self.output.tensor.dtype, self.lengths
        rows = few_rows(binder, self.rows_of_a_key_head, storage, max(self.query.size, self.value.size))
        product = "" if rows else product_of(storage, binder.target, binder.settings.precision)
        pairs = product in ("bf16", "bf16 tiles")
        tiles = product == "bf16 tiles" or (product == "f32" and not rows and self._suits_parts(binder))
        lanes = binder.target.lanes(F64 if storage.itemsize == 8 else F32)
        is_whole = storage.itemsize >= 4 and self.value.size % lanes == 0
        return AttentionSpec(
            storage=_name(storage),
            head_size=self.query.size,
            value_size=self.value.size,
            few_rows=rows,
            biases=tuple([_name(bias.tensor.dtype) for bias in self.biases]),
            folded=not rows and self._shares_biases,
            reads_values=is_whole and not rows and not pairs and not tiles and not self._packs_values,
            left=self.left is not None,
            right=self.right is not None,
            lengths="" if lengths is None else _name(lengths.dtype),
            softcap=self.softcap > 0,
            sink=self.sink is not None,
            appends=self.append is not None,
            pairs=pairs,
            tiles=tiles,
            result="" if made == storage else _name(made),
        )

    def _suits_parts(self, binder: Binder) -> bool:
        """Whether products of float32 take less time in tiles of AMX, of three parts for each number."""
        if not allows_parts(binder):
            return False
        sizes, words = (self.query.size, self.value.size), PRODUCTS["f32 tiles"].words
        rows, keys, channels = self.rows_of_a_key_head, self.key.rows, sum(sizes)
        unit = PRODUCTS["f32 tiles"].elements(words(1))
        if min(keys, KEYS) * sum(map(words, sizes)) * 4 > _PART_OF_L2 * binder.target.caches.l2:
            return False
        saved = _VECTORS_PS * channels - _TILES_PS * sum(round_up(size, unit) for size in sizes) - _WEIGHT_PS
        return rows * keys * saved > _PARTS_PS * channels * (rows + keys)

    @property
    def _packs_values(self) -> bool:
        """Whether packed values are read so often, and lie in so many pages otherwise, that packing them pays."""
        page = 4096
        pages = self.value.rows * min(page, self.value.strides[1] * self.value.tensor.dtype.itemsize) // page
        return pages > _PAGES_WITHOUT_PACKING and self.rows_of_a_key_head > _ROWS_WITHOUT_PACKING

    @property
    def _shares_biases(self) -> bool:
        """Whether every bias is the same for all rows of a key head."""
        alone = self.query.heads == self.key.heads
        steps = [bias.steps() for bias in self.biases]
        return bool(steps) and all(row == 0 and (alone or head == 0) for _, head, row in steps) and not self.softcap

    @property
    def rows_of_a_key_head(self) -> int:
        return self.query.heads // max(1, self.key.heads) * self.query.rows

    def check(self) -> None:
        """ValueError where the operands do not fit together."""
        query, key, value = self.query, self.key, self.value
        if key.heads == 0 or query.heads % key.heads:
            raise ValueError(f"{query.heads} query heads are not a multiple of {key.heads} key heads")
        if value.heads != key.heads or value.rows != key.rows:
            raise ValueError(
                f"keys of {key.heads} heads and {key.rows} positions, values of {value.heads} and {value.rows}"
            )
        if query.size != key.size:
            raise ValueError(f"queries of {query.size} channels, keys of {key.size}")
        if not query.batch == key.batch == value.batch:
            raise ValueError(f"batches of {query.batch} queries, {key.batch} keys and {value.batch} values")
        if self.lengths is not None and self.lengths.size != query.batch:
            raise ValueError(f"lengths of shape {self.lengths.shape} are not one for each of {query.batch} entries")
        if self.sink is not None and self.sink.size != query.heads:
            raise ValueError(f"a sink of shape {self.sink.shape} is not one for each of {query.heads} heads")
        wanted = (query.batch, query.heads, query.rows, key.rows)
        for bias in self.biases:
            if len(bias.tensor.shape) != 4 or any(
                size not in ((1, full) if axis < 3 else (full,))
                for axis, (size, full) in enumerate(zip(bias.tensor.shape, wanted, strict=True))
            ):
                raise ValueError(f"a bias of shape {bias.tensor.shape} does not fit scores of shape {wanted}")

    def bind(self, binder: Binder) -> None:
        """Add the step; ValueError where the operands do not fit together."""
        self.check()
        spec, query, key = self.spec(binder), self.query, self.key
        block = fixed_layout(binder.target, spec).rows
        rows = self.rows_of_a_key_head
        units = query.batch * key.heads
        group_rows = _group_rows(rows, units, key.rows, block)
        groups = -(-rows // group_rows)
        scratch = scratch_layout(binder.target, spec, key.rows, group_rows)
        caches = self.key.words("key") | self.value.words("value")
        if self.append is not None:  # written, not read
            caches |= {"key": key.address, "value": self.value.address}
        arguments = AttentionArguments(
            **query.words("query"),
            **caches,
            **self.output.words("output"),
            queries=query.rows,
            keys=key.rows,
            group_heads=query.heads // key.heads,
            key_heads=key.heads,
            groups=groups,
            group_rows=group_rows,
            scale=self.scale,
            softcap=self.softcap,
            left=self.left or 0,
            right=self.right or 0,
            offset=self.offset,
            lengths=self.lengths,
            length_add=self.length_add,
            from_end=int(self.from_end),
            sink=self.sink,
            keep=int(key.rows > KEYS),
            room=scratch.room,
            state_at=scratch.state_at,
            accumulators_at=scratch.accumulators_at,
            keys_at=scratch.keys_at,
            values_at=scratch.values_at,
            columns_at=scratch.columns_at,
            append=None if self.append is None else self.append.arguments(binder.target.caches.l2),
            biases=[bias.arguments() for bias in self.biases],
        )
        scores = query.batch * query.heads * query.rows * key.rows
        flops, nbytes, chunks = 2.0 * scores * (query.size + self.value.size), self._nbytes(), units * groups
        chunk_ns = (flops / _FLOPS_PER_NS + nbytes / _BYTES_PER_NS) / larger(1, chunks)
        binder.step(
            emit_attention,
            spec,
            arguments,
            writes=() if self.append is None else (key.tensor, self.value.tensor),
            chunks=chunks,
            claim=larger(1, math.floor(SMALL_STEP_NS / larger(1.0, chunk_ns))),
            scratch=scratch.nbytes,
            flops=flops,
            nbytes=nbytes,
            detail=lambda: self._detail(spec, group_rows),
            arithmetic=spec.product.name if spec.tiles or spec.pairs else "",
        )

    def _nbytes(self) -> float:
        """Bytes of what is read and written, which may be parts of tensors."""
        heads = (self.query, self.key, self.value, self.output)
        elements = sum(one.batch * one.rows * one.heads * one.size for one in heads)
        others = [bias.tensor for bias in self.biases]
        if self.append is not None:
            others += self.append.tensors[:2]  # the past, which is copied
        return elements * self.query.tensor.dtype.itemsize + sum([tensor.nbytes for tensor in others])

    def _detail(self, spec: AttentionSpec, group_rows: int) -> str:
        """The sizes, which form of the kernel, and what is done to the scores."""
        query, key = self.query, self.key
        form = f"form for {spec.few_rows} rows" if spec.few_rows else f"{group_rows} rows a chunk"
        heads = f"{query.heads}" if query.heads == key.heads else f"{query.heads} over {key.heads}"
        words = [f"{query.batch} x {heads} heads, {query.rows} x {key.rows} x {query.size} {spec.storage}", form]
        words += [spec.product.name] if spec.product.parts > 1 else []
        words += ["causal"] if self.right == 0 else []
        words += ["masked"] if self.biases else []
        words += ["appending to a copy of the past"] if self.append is not None else []
        return ", ".join(words)


@functools.cache
def _name(dtype: np.dtype[np.generic]) -> str:
    """The name of a dtype, which NumPy works out anew each time."""
    return dtype.name


def few_rows(binder: Binder, rows: int, storage: np.dtype[np.generic], size: int) -> int:
    """For how many rows (a power of two) the form for few rows is taken; 0 where it is not, for `rows` of a key head
    and heads of `size` channels.
    """
    most = min(FEW_ROWS, binder.target.lanes(F64 if storage.itemsize == 8 else F32))
    wide = 1
    while wide < rows and wide <= most:
        wide *= 2
    return wide if wide <= most and size <= FEW_ROWS_SIZE else 0


def _group_rows(rows: int, units: int, keys: int, block: int) -> int:
    """The rows of a chunk: a multiple of the block; enough that packing the keys is cheap against using them."""
    parts = -(-_CHUNKS // max(1, units))
    wanted = max(_ROWS_OF_A_CHUNK, -(-rows // parts))
    if keys > KEYS:
        wanted = min(wanted, _ROWS_KEPT)
    groups = max(1, rows // wanted)
    return round_up(max(1, -(-rows // groups)), block)


def storage_reason(dtype: np.dtype[np.generic] | None) -> str | None:
    """Why values of a dtype have no attention kernel; None if they have."""
    if dtype is None or dtype.name not in ("float32", "float64", "float16", "bfloat16"):
        return f"no attention kernel for {dtype}"
    return None
