"""The kernel language: a typed builder of LLVM IR in which a kernel reads like the loop nest it is.

Values carry operators, `loop` and `when` are ``with`` blocks, `variable` is a place that may change (LLVM promotes
it to registers). The builder writes text; it knows the target only as a description.

    k = Function("scale", target, [("x", PTR), ("n", I64), ("factor", F32)])
    x = k.pointer("x", F32)
    with k.loop(0, k["n"]) as i:
        x.store(x.load(i) * k["factor"], i)
    text = k.finish()
"""

from __future__ import annotations

from typing import Any

from sardonyx.compiler.llvm.arithmetic import Arithmetic
from sardonyx.compiler.llvm.control_flow import ControlFlow
from sardonyx.compiler.llvm.memory_access import MemoryAccess
from sardonyx.compiler.llvm.types import I64
from sardonyx.compiler.llvm.values import Carried, Pointer, Value, Variable


class Function(Arithmetic, MemoryAccess, ControlFlow):
    """A function under construction: `function_text` writes it, the other parts give it its vocabulary."""


def minimum(k: Function, left: Any, right: Any) -> Value:
    """The smaller of two i64."""
    return k.smaller(left if isinstance(left, Value) else k.constant(I64, left), right)


__all__ = ["Carried", "Function", "Pointer", "Value", "Variable", "minimum"]
