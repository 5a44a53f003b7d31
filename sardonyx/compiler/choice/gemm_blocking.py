"""The blocking of a matrix product, from the target, the sizes and the measured numbers of the machine."""

from __future__ import annotations

from sardonyx.compiler.choice.gemm_choice import Blocking, Problem
from sardonyx.compiler.choice.gemm_cuts import BlockingChoice, Tuning
from sardonyx.compiler.choice.gemm_cuts_in_tiles import BlockingInTiles, shares_rows
from sardonyx.compiler.choice.tuned import tuned
from sardonyx.compiler.llvm.kernels.products.gemm_product import PRODUCTS
from sardonyx.compiler.llvm.target import Target
from sardonyx.compiler.traced import called


def choose_blocking(target: Target, problem: Problem, tuning: Tuning | None = None) -> Blocking:
    """The blocking of a multiplication.

    A B that stays in the second cache is swept for each tile of rows, so that results are written line after line.
    Of a larger one, a block of K of a panel comes to the nearer caches and is used by a block of rows of A, which
    stays in the second cache for all panels of the chunk.
    """
    kept: list[BlockingChoice] = []

    def blocking(one: Problem) -> Blocking:
        if not kept:
            choice = BlockingInTiles if PRODUCTS[one.product].in_tiles else BlockingChoice
            kept.append(choice(target, one, tuning or tuned("gemm", Tuning)))
        return kept[0].of(one).blocking()

    return called(blocking, problem)


def copies_large_rows(target: Target, problem: Problem) -> bool:
    """Whether rows of A become tiles of AMX while they are multiplied: where one thread does that once, and A and its
    tiles together are more than the second cache holds from one step to the next."""
    nbytes = problem.m * problem.k * (4 + PRODUCTS[problem.product].parts * 2)
    once = problem.threads == 1 or shares_rows(problem)
    return once and nbytes > target.caches.l2 and choose_blocking(target, problem).groups == 1
