"""The attention kernel against float64, for every instruction set of this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.binding import Binder, Tensor
from sardonyx.compiler.choice.gemm_choice import bf16_product
from sardonyx.compiler.kernels.attention.attention_call import Attention, Bias, Heads, heads_of_cache, heads_of_rows
from sardonyx.compiler.kernels.attention.attention_spec import KEYS
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.llvm.target import host_targets
from sardonyx.runtime.settings import RunSettings
from tests.compiler.steps import POISON, VARIANTS, Memory, new_binder

Array = np.ndarray[Any, Any]
F32 = np.dtype(np.float32)


@dataclass
class Case:
    """One call: sizes, what is added and what is ruled out. Biases are (array, value of a masked place)."""

    queries: int = 5
    keys: int = 7
    heads: int = 2
    key_heads: int = 2
    size: int = 16
    value_size: int = 16
    batch: int = 2
    dtype: np.dtype[Any] = F32
    layout: str = "rows"  # rows, caches or packed
    biases: list[tuple[Array, float]] = field(default_factory=list)
    left: int | None = None
    right: int | None = None
    offset: int = 0
    lengths: Array | None = None
    from_end: bool = False
    softcap: float = 0.0
    sink: Array | None = None
    scale: float = 0.3
    poison: tuple[str, float] | None = None  # an operand and what one of its elements is set to


class Call:
    """A case with its operands in memory."""

    def __init__(
        self,
        case: Case,
        variant: str,
        seed: int = 0,
        precision: str = "float32",
        library: KernelLibrary | None = None,
    ) -> None:
        self.case, self.random = case, np.random.default_rng(seed)
        self.binder = Binder(library or new_binder(variant).library, RunSettings(precision=precision))
        self.memory = Memory()
        self.query, self.key, self.value = self._operands()
        if case.poison is not None:
            array = {"query": self.query, "key": self.key, "value": self.value}[case.poison[0]]
            memory = self.memory.read(array.as_tensor())
            memory[0, 0, array.rows // 2, array.size // 2] = case.poison[1]
        width = case.heads * case.value_size
        # The result lies inside wider rows, of which nothing else may be touched.
        self.whole = self.binder.new(case.dtype, (case.batch, case.queries, width + 3))
        self.output = heads_of_rows(self.whole, case.heads, "output", 2, case.value_size)

    def _operands(self) -> tuple[Heads, Heads, Heads]:
        case = self.case
        if case.layout == "packed":
            width = case.heads * case.size
            whole = self._filled((case.batch, case.queries, 3 * width))
            q, k, v = (heads_of_rows(whole, case.heads, "x", part * width, case.size) for part in range(3))
            return q, k, v
        query = self._filled((case.batch, case.queries, case.heads * case.size))
        if case.layout == "caches":
            key = self._filled((case.batch, case.key_heads, case.keys, case.size))
            value = self._filled((case.batch, case.key_heads, case.keys, case.value_size))
            return heads_of_rows(query, case.heads, "q"), heads_of_cache(key), heads_of_cache(value)
        key = self._filled((case.batch, case.keys, case.key_heads * case.size))
        value = self._filled((case.batch, case.keys, case.key_heads * case.value_size))
        return (
            heads_of_rows(query, case.heads, "q"),
            heads_of_rows(key, case.key_heads, "k"),
            heads_of_rows(value, case.key_heads, "v"),
        )

    def _filled(self, shape: tuple[int, ...]) -> Tensor:
        return self.put(self.random.standard_normal(shape).astype(self.case.dtype))

    def put(self, array: Array) -> Tensor:
        tensor = self.binder.new(array.dtype, array.shape)
        self.memory.put(tensor, array)
        return tensor

    def run(self, *, one_by_one: bool = False) -> Array:
        """The output as (batch, heads, queries, size)."""
        case = self.case
        Attention(
            self.query,
            self.key,
            self.value,
            self.output,
            case.scale,
            [Bias(self.put(array), masked) for array, masked in case.biases],
            case.left,
            case.right,
            case.offset,
            None if case.lengths is None else self.put(case.lengths),
            0,
            case.from_end,
            case.softcap,
            None if case.sink is None else self.put(case.sink),
        ).bind(self.binder)
        self.memory.run(self.binder, one_by_one=one_by_one)
        rows = self.memory.read(self.whole)
        poison = np.frombuffer(bytes([POISON]) * case.dtype.itemsize, case.dtype)[0].tobytes()
        for column in (0, 1, rows.shape[2] - 1):
            assert rows[:, :, column].tobytes() == poison * (rows.shape[0] * rows.shape[1])
        return self.memory.read(self.output.as_tensor()).copy()

    def multiplies_pairs(self) -> bool:
        """Whether the session's precision lets the kernel round its operands to bfloat16."""
        case = self.case
        biases = [Bias(self.put(array), masked) for array, masked in case.biases]
        whole = Attention(self.query, self.key, self.value, self.output, case.scale, biases, softcap=case.softcap)
        return whole.spec(self.binder).pairs

    def expected(self) -> Array:
        """The same in float64."""
        case = self.case
        q, k, v = (self.memory.read(x.as_tensor()).astype(np.float64) for x in (self.query, self.key, self.value))
        group = case.heads // k.shape[1]
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        with np.errstate(all="ignore"):
            scores = q @ np.swapaxes(k, -1, -2) * case.scale
            if case.softcap:
                scores = np.tanh(scores / case.softcap) * case.softcap
            for array, masked in case.biases:
                added = array if array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16 else None
                scores = scores + (np.where(array > 0, 0.0, masked) if added is None else added.astype(np.float64))
            scores = np.where(self._seen(k.shape[2]), scores, -np.inf)
            top = scores.max(-1, keepdims=True, initial=-np.inf)
            if case.sink is not None:
                top = np.maximum(top, case.sink[None, :, None, None])
            weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
            total = weights.sum(-1, keepdims=True)
            if case.sink is not None:
                total = total + np.exp(case.sink[None, :, None, None] - top)
            weights = np.where(total == 0, 0, weights / total)
            return weights @ v

    def _seen(self, keys: int) -> Array:
        case = self.case
        place = np.arange(keys)
        lengths = np.full(case.batch, keys) if case.lengths is None else case.lengths
        first = lengths - case.queries if case.from_end else np.full(case.batch, case.offset)
        own = (first[:, None] + np.arange(case.queries))[:, None, :, None]
        seen = np.broadcast_to(place < lengths[:, None, None, None], (case.batch, 1, case.queries, keys))
        if case.left is not None:
            seen = seen & (place >= own - case.left)
        if case.right is not None:
            seen = seen & (place <= own + case.right)
        return np.asarray(seen)


def tolerance(dtype: np.dtype[Any]) -> float:
    return {"float32": 3e-6, "float64": 1e-13, "float16": 2e-3, "bfloat16": 2e-2}[dtype.name]


def check(case: Case, variant: str, precision: str = "float32", library: KernelLibrary | None = None) -> None:
    call = Call(case, variant, precision=precision, library=library)
    found = call.run().astype(np.float64)
    expected = call.expected()
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
    bound = tolerance(case.dtype if precision == "float32" else np.dtype(precision))
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound * scale, equal_nan=True)


variants = pytest.mark.parametrize("variant", VARIANTS)


def bias(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SHAPES = {
    "one row, one key": Case(queries=1, keys=1),
    "one row": Case(queries=1, keys=37, size=64, value_size=64),
    "few rows": Case(queries=3, keys=50, size=20, value_size=12),
    "eight rows": Case(queries=8, keys=33, size=33, value_size=40),
    "nine rows": Case(queries=9, keys=16, size=8, value_size=8),
    "one key": Case(queries=30, keys=1),
    "a block and a tail of rows": Case(queries=29, keys=40, size=64, value_size=64),
    "tails everywhere": Case(queries=47, keys=67, size=33, value_size=20, batch=1),
    "wide heads": Case(queries=13, keys=35, size=128, value_size=112, batch=1),
    "a merged projection": Case(queries=26, keys=26, heads=3, size=16, layout="packed"),
    "caches": Case(queries=14, keys=45, size=24, value_size=24, layout="caches"),
    "grouped heads": Case(queries=11, keys=18, heads=6, key_heads=2, layout="caches"),
    "grouped heads for one token": Case(queries=1, keys=70, heads=6, key_heads=2, size=40, layout="caches"),
    "several groups of causal rows": Case(
        queries=400, keys=400, heads=1, key_heads=1, size=8, value_size=8, batch=1, right=0
    ),
    "several groups of rows": Case(queries=400, keys=9, heads=1, key_heads=1, size=8, value_size=8, batch=1),
    "packed values": Case(queries=50, keys=1100, heads=1, key_heads=1, size=8, value_size=1040, batch=1),
    "no keys": Case(queries=10, keys=0),
    "a head too wide for the form for few rows": Case(queries=2, keys=5, size=520, value_size=530),
    "heads too wide to be written out": Case(queries=30, keys=37, size=2500, value_size=2077, batch=1, scale=0.02),
    "values too wide to be written out": Case(queries=3, keys=6, size=8, value_size=4099, layout="caches"),
}


@variants
@pytest.mark.parametrize("name", SHAPES)
def test_shapes(variant: str, name: str) -> None:
    check(SHAPES[name], variant)


@variants
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("queries", [2, 15])
def test_other_types(variant: str, dtype: str, queries: int) -> None:
    check(Case(queries=queries, keys=21, size=20, dtype=np.dtype(dtype), value_size=18), variant)


MASKS: dict[str, dict[str, Any]] = {
    "bias for all": {"biases": [(bias(1, 1, 27, 29), 0.0)]},
    "bias for each head": {"biases": [(bias(2, 2, 27, 29), 0.0)]},
    "bias shared by rows": {"biases": [(bias(2, 1, 1, 29), 0.0)]},
    "a mask of truth values": {"biases": [(bias(2, 2, 27, 29) > 0, float("-inf"))]},
    "a mask of numbers": {"biases": [((bias(2, 1, 1, 29) > 0).astype(np.int32), -10000.0)]},
    "a mask and a bias": {"biases": [(bias(2, 1, 1, 29) > 0, -10000.0), (bias(1, 2, 27, 29), 0.0)]},
    "all masked by -inf": {"biases": [(np.full((1, 1, 27, 29), -np.inf, np.float32), 0.0)]},
    "all masked by a number": {"biases": [(np.zeros((2, 1, 1, 29), bool), -16.0)]},
    "a narrow bias": {"biases": [(bias(1, 1, 27, 29).astype(ml_dtypes.bfloat16), 0.0)]},
    "causal": {"right": 0},
    "causal behind a past": {"right": 0, "offset": 2},
    "before the first key": {"right": 0, "offset": -5},
    "a window": {"right": 0, "left": 4, "offset": 2},
    "a window that looks ahead": {"right": 3, "left": 1},
    "a window behind all keys": {"right": 0, "left": 2, "offset": 25},
    "lengths": {"lengths": np.array([29, 11])},
    "lengths from 0 to too long": {"lengths": np.array([0, 29], np.int32)},
    "causal up to the lengths": {"lengths": np.array([29, 28]), "right": 0, "from_end": True},
    "soft cap": {"softcap": 0.7},
    "soft cap and a mask": {"softcap": 0.7, "biases": [(bias(1, 1, 27, 29) > 0, float("-inf"))]},
    "sink": {"sink": np.array([0.5, -3.0], np.float32)},
    "sink, and no key": {"sink": np.array([0.5, -3.0], np.float32), "right": 0, "offset": -30},
}


@variants
@pytest.mark.parametrize("name", MASKS)
def test_masks(variant: str, name: str) -> None:
    check(Case(queries=27, keys=29, **MASKS[name]), variant)


# Products of pairs of bfloat16


def multiplies_pairs(variant: str) -> bool:
    return bf16_product(host_targets()[variant]) is not None


pairs = pytest.mark.parametrize("variant", list(filter(multiplies_pairs, host_targets())))


@pairs
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_in_pairs(variant: str, name: str) -> None:
    check(SHAPES[name], variant, "bfloat16")


@pairs
@pytest.mark.parametrize("name", MASKS)
def test_masks_in_pairs(variant: str, name: str) -> None:
    case = Case(queries=27, keys=29, **MASKS[name])
    assert Call(case, variant, precision="bfloat16").multiplies_pairs()
    check(case, variant, "bfloat16")


@pairs
def test_more_keys_than_a_block_in_pairs(variant: str) -> None:
    keys = 2 * KEYS + 77
    check(Case(queries=25, keys=keys, size=8, value_size=20, batch=1, right=0, offset=keys - 25), variant, "bfloat16")


@pairs
@pytest.mark.parametrize("operand", ["query", "key", "value"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_in_pairs(variant: str, operand: str, number: float) -> None:
    check(Case(queries=26, keys=21, poison=(operand, number)), variant, "bfloat16")


@pairs
def test_other_types_and_few_rows_take_no_pairs(variant: str) -> None:
    for case in (Case(queries=30, dtype=np.dtype(np.float64)), Case(queries=2)):
        assert not Call(case, variant, precision="bfloat16").multiplies_pairs()
        check(case, variant, "bfloat16")


@pairs
def test_the_same_bits_for_any_split_of_the_grid_in_pairs(variant: str) -> None:
    case = Case(queries=230, keys=71, heads=4, key_heads=2)
    whole, split = (
        Call(case, variant, precision="bfloat16").run(one_by_one=one_by_one).tobytes() for one_by_one in (False, True)
    )
    assert whole == split


@variants
@pytest.mark.parametrize("name", ["bias for each head", "a mask of truth values", "causal", "a window", "lengths"])
def test_masks_of_few_rows(variant: str, name: str) -> None:
    options = dict(MASKS[name])
    options["biases"] = [(array[:, :, :2], masked) for array, masked in options.get("biases", [])]
    if "biases" in options:
        options["biases"] = [(np.ascontiguousarray(array), masked) for array, masked in options["biases"]]
    check(Case(queries=2, keys=29, **options), variant)


@variants
@pytest.mark.parametrize("queries", [1, 25])
@pytest.mark.parametrize("right", [None, 0])
def test_more_keys_than_a_block(variant: str, queries: int, right: int | None) -> None:
    keys = 2 * KEYS + 77
    check(Case(queries=queries, keys=keys, size=8, value_size=20, batch=1, right=right, offset=keys - queries), variant)


@variants
def test_many_rows_keep_their_state_over_blocks_of_keys(variant: str) -> None:
    case = Case(queries=60, keys=KEYS + 9, heads=1, key_heads=1, size=8, value_size=8, batch=1)
    case.right, case.offset = 0, KEYS - 30
    check(case, variant)


@variants
@pytest.mark.parametrize("queries", [3, 26])
@pytest.mark.parametrize("operand", ["query", "key", "value"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_go_where_the_formula_takes_them(
    variant: str, queries: int, operand: str, number: float
) -> None:
    check(Case(queries=queries, keys=20, poison=(operand, number)), variant)


@variants
@pytest.mark.parametrize("magnitude", [1e-30, 6.0, 1e18])
def test_large_and_small_scores(variant: str, magnitude: float) -> None:
    check(Case(queries=26, keys=40, scale=magnitude), variant)


@variants
@pytest.mark.parametrize("case", [Case(queries=230, keys=70, heads=4, key_heads=2), Case(queries=2, keys=99)])
def test_the_same_bits_for_any_split_of_the_grid(variant: str, case: Case) -> None:
    whole = Call(case, variant).run()
    split = Call(case, variant).run(one_by_one=True)
    assert whole.tobytes() == split.tobytes()


@pytest.mark.parametrize("case", [Case(queries=0), Case(batch=0)])
def test_nothing_to_compute_takes_no_step(case: Case) -> None:
    call = Call(case, "")
    Attention(call.query, call.key, call.value, call.output, case.scale).bind(call.binder)
    assert not call.binder.steps


def test_a_long_grid_is_split() -> None:
    call = Call(Case(queries=600, keys=4, heads=1, key_heads=1, batch=1, size=8, value_size=8), "")
    call.run()
    assert call.binder.steps[0].chunks > 1


def test_random_shapes() -> None:
    random = np.random.default_rng(11)
    for seed in range(25):
        key_heads = int(random.integers(1, 4))
        queries, keys = int(random.integers(1, 60)), int(random.integers(1, 90))
        heads, batch = key_heads * int(random.integers(1, 4)), int(random.integers(1, 4))
        case = Case(queries, keys, heads, key_heads, 8 * (1 + seed % 3), 20, batch)
        case.layout = str(random.choice(["rows", "caches"]))
        if random.random() < 0.5:
            shape = [int(random.choice([1, size])) for size in (batch, heads, queries)]
            case.biases = [(bias(*shape, keys, seed=seed), 0.0)]
        if random.random() < 0.4:
            case.right, case.offset = 0, int(random.integers(0, 20))
        if random.random() < 0.3:
            case.lengths = random.integers(0, keys + 1, batch)
        check(case, "")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case(heads=3, key_heads=2), "3 query heads are not a multiple of 2 key heads"),
        (Case(biases=[(bias(3, 1, 5, 7), 0.0)]), "does not fit scores of shape"),
    ],
)
def test_operands_that_do_not_fit(case: Case, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Call(case, "").run()
