"""The scores of trees, added up over blocks of trees."""

from __future__ import annotations

import numpy as np

from sardonyx.compiler.arguments import Float, Read, Record, Size, Table, Write, kernel
from sardonyx.compiler.llvm.builder import Function
from sardonyx.compiler.llvm.types import BOOL, F64, I64, Type, dtype_type
from sardonyx.light_dataclass import dataclass


@dataclass(frozen=True)
class TotalSpec:
    """`result`: the dtype of the results; `counted`: whether some scores may have met no weight, and stay 0."""

    result: str
    counted: bool
    function: str

    @property
    def type(self) -> Type:
        """The type of the results."""
        return dtype_type(self.result)


class Arguments(Record):
    scores = Read(F64)  # [rows, blocks, targets]
    met = Read(I64)  # how many weights met in each
    rows = Size()
    blocks = Size()
    targets = Size()
    base = Table(F64)  # [targets]
    divisor = Float()
    results = Write(lambda spec: spec.type)  # [rows, targets]
    known = Write(BOOL)  # [rows, targets], if `counted`
    per_chunk = Size()


@kernel(Arguments)
def emit_total(k: Function, a: Arguments, spec: TotalSpec) -> None:
    """The scores of all blocks, plus base values. A score in which no weight met is 0, without its base value."""
    scores, met = a.scores, a.met
    rows, blocks, targets = a.rows, a.blocks, a.targets
    base, divisor = a.base, a.divisor
    results, known = a.results, a.known
    per_chunk = a.per_chunk
    start = {"sum": 0.0, "min": np.inf, "max": -np.inf}[spec.function]
    with (
        k.loop(k["begin"] * per_chunk, k.smaller(k["end"] * per_chunk, rows)) as row,
        k.loop(0, targets) as place,
    ):
        total, count = k.variable(F64, start), k.variable(I64, 0)
        with k.loop(0, blocks) as block:
            at = (row * blocks + block) * targets + place
            part = scores.load(at)
            if spec.function == "sum":
                total.set(total.get() + part)
            else:
                total.set((k.smaller if spec.function == "min" else k.larger)(total.get(), part))
            if spec.counted:
                count.set(count.get() + met.load(at))
        score = total.get() / divisor + base.load(place)
        if spec.counted:
            scored = count.get().differs(0)
            score = k.select(scored, score, 0.0)
            known.store(scored, row * targets + place)
        results.store(score.to(spec.type), row * targets + place)
