"""What an attention kernel is compiled for, what it is called with, and how its scratch is laid out."""

from __future__ import annotations

from sardonyx.compiler.arguments import Float, Group, Read, Record, Several, When, Write, sizes
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS, Product
from sardonyx.compiler.llvm.kernels.products.gemm_tiles import SIDE
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.llvm.types import F32, F64, Type, dtype_type
from sardonyx.light_dataclass import dataclass

# Keys of one block: whole rows of scores up to here, running corrections beyond.
KEYS = 2048

# Rows of scores have this many elements more than a block has keys: strides of 4096 bytes conflict in the first cache.
SCORES_STRIDE = KEYS + 32

# Keys whose weights in parts lie in tiles of AMX at a time, beside their values in the nearest cache.
_KEYS_OF_PARTS = 128

# The words of one row of the table: its output, the keys that it sees, its rows of the biases.
ROW_WORDS = ("output", "low", "high", "bias0", "bias1")
ROW_BYTES = 64


@dataclass(frozen=True)
class AttentionSpec:
    """The structure of an attention kernel.

    - `storage`: dtype of queries, keys and values, and of the output; float16 and bfloat16 are computed in float32.
    - `few_rows`: 0, or the number of rows (a power of two) that a key head has at most: the form for decoding.
    - `biases`: dtypes of what is added to the scores, in order; bool and integers are masks.
    - `folded`: whether each bias is the same for all rows of a key head, so that it is added with the products.
    - `reads_values`: whether values are read where they lie rather than packed; for sizes in whole vectors of the type
      that is computed in.
    - `left`, `right`: whether queries see only keys near their own position.
    - `lengths`: dtype of the number of keys of each batch entry, or "".
    - `appends`: whether keys and values are written to the caches (`key`, `value`) from a past and new rows on the
      way; only in the form for few rows, where the rows together see all keys.
    - `softcap`: scores are cap * tanh(score / cap).
    - `sink`: one logit for each head that takes part in the denominator alone.
    - `pairs`: whether float32 operands of both products are rounded to bfloat16 and multiplied two by two; not in the
      form for few rows, and with values that are packed.
    - `tiles`: whether operands are multiplied in tiles of AMX: pairs, or, without `pairs`, float32 in three parts.
    - `result`: dtype of the output, where it is not `storage`.
    """

    storage: str
    head_size: int
    value_size: int
    few_rows: int = 0
    biases: tuple[str, ...] = ()
    folded: bool = False
    reads_values: bool = False
    left: bool = False
    right: bool = False
    lengths: str = ""
    softcap: bool = False
    sink: bool = False
    appends: bool = False
    pairs: bool = False
    tiles: bool = False
    result: str = ""

    @property
    def product(self) -> Product:
        """The inner product of queries and keys, and of weights and values."""
        if self.tiles:
            return PRODUCTS["bf16 tiles" if self.pairs else "f32 tiles"]
        return PRODUCTS["bf16" if self.pairs else "f64" if self.compute_type == F64 else "f32"]

    @property
    def keys_in_tiles(self) -> int:
        """Keys whose weights lie in tiles at a time."""
        return KEYS if self.product.parts == 1 else _KEYS_OF_PARTS

    @property
    def limited(self) -> bool:
        """Whether rows differ in the keys that they see."""
        return self.left or self.right or bool(self.lengths)

    @property
    def storage_type(self) -> Type:
        return dtype_type(self.storage)

    @property
    def result_type(self) -> Type:
        return dtype_type(self.result or self.storage)

    @property
    def compute_type(self) -> Type:
        return F64 if self.storage_type == F64 else F32


class AppendArguments(Record):
    """Where keys and values come from that are appended to a cache on the way; the rows of the past are contiguous. Of
    caches that have more than `near` bytes, nothing would be left in the processor's own when it is read again."""

    past_rows, near = sizes(2)
    past_key = Read()
    past_key_batch, past_key_head = sizes(2)
    new_key = Read()
    new_key_batch, new_key_row, new_key_head = sizes(3)
    past_value = Read()
    past_value_batch, past_value_head = sizes(2)
    new_value = Read()
    new_value_batch, new_value_row, new_value_head = sizes(3)


class BiasArguments(Record):
    """A row for each query. `bias_masked` is what a truth value or a number <= 0 of a mask adds."""

    bias = Read()
    bias_batch, bias_head, bias_row = sizes(3)
    bias_masked = Float()


class AttentionArguments(Record):
    """Strides count elements; `*_at` are byte offsets into the scratch. `left` and `right` say how many keys before and
    after its own position a query sees; `keep` is 1 where every row keeps its own state. The step of a kernel that
    appends gives the addresses of `key` and `value`, which it writes."""

    query = Read()
    query_batch, query_row, query_head = sizes(3)
    key = Read()
    key_batch, key_row, key_head = sizes(3)
    value = Read()
    value_batch, value_row, value_head = sizes(3)
    output = Write()
    output_batch, output_row, output_head, queries, keys, group_heads, key_heads, groups, group_rows = sizes(9)
    scale = Float()
    softcap = Float()
    left, right, offset = sizes(3)
    lengths = Read()
    length_add, from_end = sizes(2)
    sink = Read()
    keep, room, state_at, accumulators_at, keys_at, values_at, columns_at = sizes(7)
    append = When(Group(AppendArguments), lambda spec: spec.appends)
    biases = Several(Group(BiasArguments), lambda spec: len(spec.biases))


@dataclass(frozen=True)
class TileRows:
    """Rows of the micro-kernels: of the main one, of the one for what is left, and of a block of rows."""

    main: int
    rest: int
    block: int


def tile_rows(target: Target, spec: AttentionSpec) -> TileRows:
    """As many accumulators as the registers hold, in two vectors for each row."""
    if spec.tiles:
        return TileRows(SIDE, SIDE, 2 * SIDE)
    return TileRows(12, 4, 24) if target.registers >= 32 else TileRows(6, 2, 24)


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def key_words(spec: AttentionSpec, lanes: int) -> int:
    """Words of one packed key."""
    return spec.product.words(spec.head_size) if spec.tiles else round_up(spec.head_size, lanes)


@dataclass(frozen=True)
class Layout:
    """Where things lie in scratch, in bytes; strides count elements. What follows `end` depends on the sizes."""

    rows: int
    lanes: int
    query_stride: int
    accumulator_stride: int
    queries_at: int
    scores_at: int
    maxima_at: int
    weights_at: int
    end: int


def fixed_layout(target: Target, spec: AttentionSpec) -> Layout:
    """The part of the scratch whose size is known without the shapes: the table of rows, queries and scores."""
    compute = spec.compute_type
    lanes = target.lanes(compute)
    rows = spec.few_rows or tile_rows(target, spec).block
    query_stride = spec.product.words(spec.head_size) if spec.tiles else round_up(spec.head_size, lanes) + 16
    accumulator_stride = round_up(spec.value_size, lanes) + 16
    queries_at = rows * ROW_BYTES
    scores_at = round_up(queries_at + rows * query_stride * compute.nbytes, 64)
    maxima_at = round_up(scores_at + rows * SCORES_STRIDE * compute.nbytes, 64)
    weights_at = maxima_at + rows * lanes * compute.nbytes
    end = weights_at + (rows * spec.product.words(spec.keys_in_tiles) * compute.nbytes if spec.tiles else 0)
    return Layout(rows, lanes, query_stride, accumulator_stride, queries_at, scores_at, maxima_at, weights_at, end)


@dataclass(frozen=True)
class Scratch:
    """The places in scratch that depend on sizes, as the arguments of the same names, and the size of it all."""

    room: int
    state_at: int
    accumulators_at: int
    keys_at: int
    values_at: int
    columns_at: int
    nbytes: int


def scratch_layout(target: Target, spec: AttentionSpec, keys: int, group_rows: int) -> Scratch:
    """The scratch of a kernel for this many keys and rows of a chunk."""
    fixed = fixed_layout(target, spec)
    nbytes = spec.compute_type.nbytes
    kept = max(fixed.rows, group_rows) if keys > KEYS else fixed.rows
    room = round_up(min(keys, KEYS), 2 * fixed.lanes)
    accumulators_at = round_up(fixed.end + 2 * kept * nbytes, 64)
    keys_at = round_up(accumulators_at + kept * fixed.accumulator_stride * nbytes, 64)
    if spec.few_rows:
        return Scratch(room, fixed.end, accumulators_at, keys_at, keys_at, keys_at, keys_at)
    values_at = keys_at + room * key_words(spec, fixed.lanes) * nbytes
    columns = round_up(spec.value_size, (2 if spec.tiles else 1) * fixed.lanes)
    columns_at = values_at + spec.product.words(room) * columns * nbytes
    return Scratch(room, fixed.end, accumulators_at, keys_at, values_at, columns_at, columns_at + room * nbytes)
