"""How much `python -m benchmarks` measures: a few runs to try it out, the usual, or more of everything."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.turns import Budget


@dataclass(frozen=True)
class Effort:
    """One measure for all parts.

    models              what each engine may spend on a model
    one_team_only       engines that take part with one number of threads alone, the first
    repeats             processes for each figure of start-up
    turns               of small calls
    lengths             new sequence lengths
    rounds              of runs on an idle and on a busy machine
    products            matrix products, each in `product_turns` turns
    techniques          what a model with a technique, and one without it, may spend
    pace                about how long it all takes, where the usual takes 1
    """

    models: Budget
    one_thread_pool_only: tuple[str, ...]
    repeats: int
    turns: int
    lengths: int
    rounds: int
    products: int
    product_turns: int
    techniques: Budget
    pace: float


# A module of torch takes as long to build as all other engines' sessions together.
_SLOW_TO_BUILD = ("torch", "torch-compile")

QUICK = Effort(
    models=Budget(runs=3),
    one_thread_pool_only=(),
    repeats=1,
    turns=3,
    lengths=4,
    rounds=1,
    products=6,
    product_turns=3,
    techniques=Budget(runs=2),
    pace=0.5,
)
USUAL = Effort(
    models=Budget(seconds=0.5, turn_seconds=0.15),
    one_thread_pool_only=_SLOW_TO_BUILD,
    repeats=2,
    turns=15,
    lengths=64,
    rounds=6,
    products=200,
    product_turns=5,
    techniques=Budget(seconds=0.3, turn_seconds=0.1, pause_seconds=0.05),
    pace=1.0,
)
THOROUGH = Effort(
    models=Budget(),
    one_thread_pool_only=(),
    repeats=3,
    turns=40,
    lengths=64,
    rounds=12,
    products=200,
    product_turns=7,
    techniques=Budget(seconds=2.0),
    pace=2.5,
)
