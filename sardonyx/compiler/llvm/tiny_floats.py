"""Floats of at most 8 bits, each in a byte of its own, from and to float32.

The formats are those of ONNX and `ml_dtypes`: "Float8 formats for deep learning" (Micikevicius et al., 2022), their
variants with one NaN and one zero (Noune et al., 2022), and the 4- and 6-bit ones and the bare exponents of the OCP's
Microscaling formats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sardonyx.compiler.llvm.types import E8M0, F32, I32, U8, U32, Type
from sardonyx.light_dataclass import dataclass

if TYPE_CHECKING:
    from sardonyx.compiler.llvm.builder import Function, Value

_BIAS, _FRACTION, _EXPONENTS = 127, 23, 0x7F800000  # of float32
_MAGNITUDE, _NAN = 0x7FFFFFFF, 0x7FC00000


@dataclass(frozen=True)
class Format:
    """How the bits below the sign are divided; the biased exponent 0 is that of numbers without a leading one.

    `top` are the bits of the largest number; `beyond` those of what is larger, `nan` those of NaN, both without a
    sign; the latter is None where NaN becomes the zero of the other sign, as the formats without one have it. With
    `unsigned_zero` the bits of the negative zero are those of NaN, and of all that is larger than the largest number.
    """

    exponent: int
    fraction: int
    bias: int
    top: int
    beyond: int
    nan: int | None = None
    unsigned_zero: bool = False

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.fraction)


_FORMATS: Mapping[str, Format] = {
    "float8_e4m3fn": Format(4, 3, 7, top=0x7E, beyond=0x7F, nan=0x7F),
    "float8_e4m3fnuz": Format(4, 3, 8, top=0x7F, beyond=0x80, nan=0x80, unsigned_zero=True),
    "float8_e5m2": Format(5, 2, 15, top=0x7B, beyond=0x7C, nan=0x7E),
    "float8_e5m2fnuz": Format(5, 2, 16, top=0x7F, beyond=0x80, nan=0x80, unsigned_zero=True),
    "float6_e2m3fn": Format(2, 3, 1, top=0x1F, beyond=0x1F),
    "float6_e3m2fn": Format(3, 2, 3, top=0x1F, beyond=0x1F),
    "float4_e2m1fn": Format(2, 1, 1, top=0x7, beyond=0x7),
}


def from_byte(byte: Value, storage: Type) -> Value:
    """The F32 values of bytes (U8)."""
    k, word = byte.function, byte.to(U32)
    if storage == E8M0:
        bits = k.select(word.equals(0), k.constant(word.type, 1 << (_FRACTION - 1)), word << _FRACTION)
        return k.select(word.equals(0xFF), k.constant(word.type, _NAN), bits).bits_as(F32)
    form = _FORMATS[storage.kind]
    magnitude = word & (form.sign - 1)
    normal = (magnitude << (_FRACTION - form.fraction)) + ((_BIAS - form.bias) << _FRACTION)
    # Those without a leading one are counted: no float32 comes in that a processor might take for zero.
    counted = magnitude.to(I32).to(F32) * 2.0 ** (1 - form.bias - form.fraction)
    bits = k.select(magnitude < (1 << form.fraction), counted.bits_as(U32), normal)
    if form.unsigned_zero:
        bits = k.select(word.equals(form.sign), k.constant(word.type, _NAN), bits)
    elif form.nan is not None:
        infinite = form.beyond != form.nan
        special = magnitude >= form.beyond
        bits = k.select(special, bits | _EXPONENTS if infinite else k.constant(word.type, _NAN), bits)
    return (bits | ((word & form.sign) << (31 - form.exponent - form.fraction))).bits_as(F32)


def to_byte(k: Function, single: Value, storage: Type) -> Value:
    """The bytes (U8) of F32 values rounded to nearest, ties to even."""
    form = _FORMATS[storage.kind]
    word = single.bits_as(U32)
    magnitude, sign = word & _MAGNITUDE, (word >> (31 - form.exponent - form.fraction)) & form.sign
    shift = _FRACTION - form.fraction
    half = (1 << (shift - 1)) - 1
    normal = (magnitude - ((_BIAS - form.bias) << _FRACTION) + half + ((magnitude >> shift) & 1)) >> shift
    # The last bit of this number is worth as much as that of the results without a leading one.
    counter = k.constant(single.type, 2.0 ** (1 - form.bias - form.fraction + _FRACTION))
    counted = (magnitude.bits_as(F32) + counter).bits_as(U32) - counter.bits_as(U32)
    bits = k.select(magnitude < ((_BIAS + 1 - form.bias) << _FRACTION), counted, normal)
    bits = k.select(bits > form.top, k.constant(word.type, form.beyond), bits)
    is_nan = magnitude > _EXPONENTS
    if form.nan is None:
        return k.select(is_nan, sign ^ form.sign, bits | sign).to(U8)
    bits = k.select(is_nan, k.constant(word.type, form.nan), bits)
    if form.unsigned_zero:
        sign = k.select(bits.equals(0), k.constant(word.type, 0), sign)
    return (bits | sign).to(U8)
