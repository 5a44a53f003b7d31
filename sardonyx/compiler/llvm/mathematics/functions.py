"""The functions of float vectors, by the name of the primitive of expressions.

Every function takes values of type F32 or F64 with any number of lanes and emits straight code. NaN stays NaN,
infinities, denormal numbers and the sign of zero are handled as IEEE 754 and C99's Annex F say. Bounds of the error in
units in the last place, over the whole range, as `tests/compiler/test_mathematics.py` measures them on every
instruction set:

    function                     F32   F64
    exp                            2     2
    expm1                          3     3
    sigmoid                        4     2
    log, log1p                     2     2
    power                          1     2
    erf                            7     2
    tanh                           6     3
    sinh, cosh                     3     3
    asinh, acosh, atanh            4     4
    sin, cos                       2     2
    tan                            4     4
    asin, acos, atan               3     3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sardonyx.compiler.llvm.builder import Function, Value
from sardonyx.compiler.llvm.mathematics.elements import absolute, sqrt
from sardonyx.compiler.llvm.mathematics.error_function import erf
from sardonyx.compiler.llvm.mathematics.exponentials import exp, expm1, gated, sigmoid
from sardonyx.compiler.llvm.mathematics.hyperbolic import acosh, asinh, atanh, cosh, sinh, tanh
from sardonyx.compiler.llvm.mathematics.logarithms import log, log1p
from sardonyx.compiler.llvm.mathematics.powers import power
from sardonyx.compiler.llvm.mathematics.rounding import ceil, floor, fmod, modulo, rint, trunc
from sardonyx.compiler.llvm.mathematics.trigonometry import acos, asin, atan, cos, sin, tan

ONE_OPERAND: Mapping[str, Callable[[Function, Value], Value]] = {
    "absolute": absolute,
    "acos": acos,
    "acosh": acosh,
    "asin": asin,
    "asinh": asinh,
    "atan": atan,
    "atanh": atanh,
    "ceil": ceil,
    "cos": cos,
    "cosh": cosh,
    "erf": erf,
    "exp": exp,
    "expm1": expm1,
    "floor": floor,
    "log": log,
    "log1p": log1p,
    "rint": rint,
    "sigmoid": sigmoid,
    "sin": sin,
    "sinh": sinh,
    "sqrt": sqrt,
    "tan": tan,
    "tanh": tanh,
    "trunc": trunc,
}
TWO_OPERANDS: Mapping[str, Callable[[Function, Value, Value], Value]] = {
    "fmod": fmod,
    "gated": gated,
    "modulo": modulo,
    "power": power,
}
