"""Values by key against a dict, for every instruction set of this machine."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.compiler.kernels.classic.keyed_table import keyed_table
from sardonyx.compiler.kernels.classic.look_up import LookUp
from sardonyx.compiler.native.movement.slices import transposed
from tests.compiler.steps import VARIANTS, Memory, new_binder, outputs_of

Array = np.ndarray[Any, Any]

KEYS = {
    "few": np.arange(-3, 9),
    "with holes": np.array([7, -20, 0, 90, 33]),
    "one": np.array([5]),
    "far apart": np.array([-(2**63), 0, 2**63 - 1, 12, -12]),
    "powers": np.array([1 << shift for shift in range(62)] + [3 << shift for shift in range(40)]),
    "many": np.random.default_rng(1).integers(-(2**40), 2**40, 3000),
    "halves": np.array([0.0, -1.5, 2.0, np.inf, 100.5]),
    "floats": np.array([np.nan, -np.inf, 1e-40, 3.25, -0.0, *np.random.default_rng(2).normal(size=50)]),
}
INTEGERS = [np.int8, np.uint8, np.int32, np.int64]
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def parameters(name: str, dtype: Any) -> dict[str, Any]:
    keys = KEYS[name]
    if keys.dtype.kind == "f":  # those that the elements can be equal to
        keys = keys.astype(dtype).astype(np.float64)
    keys = np.unique(keys)
    values = np.random.default_rng(3).integers(0, 256, len(keys)).astype(np.int64)
    return {"keys": keys, "values": values, "others": np.array(-7)}


def elements(keys: Array, dtype: Any, count: int) -> Array:
    """Some keys, their neighbours and others."""
    rng = np.random.default_rng(count)
    near = rng.choice(keys, count)
    if keys.dtype.kind == "f":
        return np.where(rng.random(count) < 0.7, near, rng.normal(size=count)).astype(dtype)
    near = near + (rng.integers(-1, 2, count) * (abs(near) < 2**62))
    limits = np.iinfo(dtype)
    return np.clip(near, limits.min, limits.max).astype(dtype)


def expected(given: Array, keys: Array, values: Array, others: Any) -> Array:
    known = {key if key == key else None: value for key, value in zip(keys.tolist(), values.tolist(), strict=True)}
    wide = given.astype(np.float64 if keys.dtype.kind == "f" else np.int64).reshape(-1).tolist()
    found = [known.get(one if one == one else None, others) for one in wide]
    return np.array(found, values.dtype).reshape(given.shape)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1030, 2100])
def test_values_by_key(name: str, count: int, variant: str) -> None:
    for dtype in FLOATS if KEYS[name].dtype.kind == "f" else INTEGERS:
        table = parameters(name, dtype)
        given = elements(table["keys"], dtype, count)
        (found,) = outputs_of(LookUp(table), [given], variant, one_by_one=True)
        np.testing.assert_array_equal(found, expected(given, **table))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.complex128])
def test_values_of_any_width(dtype: Any, variant: str) -> None:
    table = parameters("with holes", np.int64)
    table = {**table, "values": table["values"].astype(dtype), "others": np.array(3, dtype)}
    given = elements(table["keys"], np.int64, 45)
    (found,) = outputs_of(LookUp(table), [given], variant)
    np.testing.assert_array_equal(found, expected(given, **table))


@pytest.mark.parametrize(("axes", "copies"), [((0, 1), 0), ((1, 0), 1)])
def test_strided_elements(axes: tuple[int, int], copies: int) -> None:
    table = parameters("few", np.int64)
    base = elements(table["keys"], np.int64, 60).reshape(12, 5)
    binder, memory = new_binder(), Memory()
    whole = binder.external(0, base.dtype, base.shape)
    memory.put(whole, base)
    (found,) = LookUp(table).bind(binder, transposed(whole, axes))
    column = whole.reshaped((12, 1), (5, 1), 3 * 8)
    (third,) = LookUp(table).bind(binder, column)
    assert len(binder.steps) == 2 + copies
    assert not memory.run(binder)
    np.testing.assert_array_equal(memory.read(found), expected(base.transpose(axes), **table))
    np.testing.assert_array_equal(memory.read(third), expected(base[:, 3:4], **table))


def test_tables_of_near_integers_are_read_by_place() -> None:
    forms = {name: keyed_table(keys, keys, keys[0]).dense for name, keys in KEYS.items() if keys.dtype.kind == "i"}
    assert [name for name, dense in forms.items() if dense] == ["few", "with holes", "one"]
