"""The types of the kernel language: scalars and vectors of them, as LLVM writes them."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.light_dataclass import dataclass

_FLOAT_NAMES = {32: "float", 64: "double"}

# By the names of their dtypes.
_TINY_FLOATS = frozenset(
    {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"}
    | {"float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"}
)
_FLOATS = frozenset({"f", "bf"}) | _TINY_FLOATS


@functools.cache
def _spelled(kind: str, bits: int, lanes: int) -> str:
    """A type as LLVM writes it."""
    if kind in ("ptr", "void", "half", "bfloat"):
        scalar = kind
    else:
        scalar = _FLOAT_NAMES[bits] if kind in _FLOATS and bits > 16 else f"i{bits}"
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar, or a vector of `lanes` of them; `kind` is ``i`` (signed), ``u``, ``f``, ``bf`` or ``ptr``, or the name
    of a tiny float.

    LLVM's integers have no sign; the kind decides which instruction divides, compares, shifts and widens. float16 and
    bfloat16 are words of 16 bits for LLVM, which are moved and converted: it may call library functions wherever a
    value of its own types for them goes from one block to another. `HALF` and `BRAIN` are these types, for
    instructions that need them. Tiny floats, of at most 8 bits, are bytes likewise. Integers of 2 and 4 bits lie in a
    byte each, of which they are the low bits.
    """

    kind: str
    bits: int
    lanes: int = 1

    def __str__(self) -> str:
        return _spelled(self.kind, self.bits, self.lanes)

    @property
    def is_float(self) -> bool:
        return self.kind in _FLOATS

    @property
    def is_narrow_float(self) -> bool:
        """float16, bfloat16 and tiny floats, which are computed in float32."""
        return self.bits <= 16 and self.kind in _FLOATS

    @property
    def is_tiny_float(self) -> bool:
        return self.kind in _TINY_FLOATS

    @property
    def is_tiny_integer(self) -> bool:
        """Integers of 2 and 4 bits, which are computed in 8."""
        return self.kind in ("i", "u") and 1 < self.bits < 8

    @property
    def is_signed(self) -> bool:
        return self.kind == "i"

    @property
    def nbytes(self) -> int:
        """Bytes of one element in memory; a truth value takes one."""
        return max(1, self.bits // 8)

    @property
    def scalar(self) -> Type:
        return self if self.lanes == 1 else Type(self.kind, self.bits)

    @property
    def mangled(self) -> str:
        """How the names of overloaded intrinsics spell the type: ``v16f32``."""
        letter = "i" if self.is_narrow_float else {"u": "i", "ptr": "p"}.get(self.kind, self.kind)
        scalar = "p0" if self.kind == "ptr" else f"{letter}{self.bits}"
        return scalar if self.lanes == 1 else f"v{self.lanes}{scalar}"

    def vector(self, lanes: int) -> Type:
        """A vector of this scalar; the scalar itself for one lane."""
        return Type(self.kind, self.bits, lanes)

    def with_scalar(self, scalar: Type) -> Type:
        return scalar.vector(self.lanes)


BOOL = Type("u", 1)
I8, I16, I32, I64 = Type("i", 8), Type("i", 16), Type("i", 32), Type("i", 64)
U8, U16, U32, U64 = Type("u", 8), Type("u", 16), Type("u", 32), Type("u", 64)
F16, BF16, F32, F64 = Type("f", 16), Type("bf", 16), Type("f", 32), Type("f", 64)
E8M0 = Type("float8_e8m0fnu", 8)  # a power of two; only read
HALF, BRAIN = Type("half", 16), Type("bfloat", 16)
PTR = Type("ptr", 64)
VOID = Type("void", 0)

_OF_DTYPE: dict[np.dtype[Any], Type] = {
    np.dtype(np.bool_): BOOL,
    np.dtype(np.int8): I8,
    np.dtype(np.int16): I16,
    np.dtype(np.int32): I32,
    np.dtype(np.int64): I64,
    np.dtype(np.uint8): U8,
    np.dtype(np.uint16): U16,
    np.dtype(np.uint32): U32,
    np.dtype(np.uint64): U64,
    np.dtype(np.float16): F16,
    np.dtype(ml_dtypes.bfloat16): BF16,
    np.dtype(np.float32): F32,
    np.dtype(np.float64): F64,
    np.dtype(ml_dtypes.int4): Type("i", 4),
    np.dtype(ml_dtypes.uint4): Type("u", 4),
    np.dtype(ml_dtypes.int2): Type("i", 2),
    np.dtype(ml_dtypes.uint2): Type("u", 2),
    **{np.dtype(name): Type(name, 8) for name in _TINY_FLOATS},
}


def type_of(dtype: np.dtype[Any]) -> Type | None:
    """The type whose memory a NumPy dtype describes; None for one that the kernel language does not have."""
    return _OF_DTYPE.get(np.dtype(dtype))


def dtype_type(name: str) -> Type:
    """The type of a dtype that the kernel language has, by the dtype's name."""
    found = type_of(np.dtype(name))
    assert found is not None
    return found
