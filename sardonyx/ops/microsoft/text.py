"""Tokenizer: strings split into tokens by separators, by an expression, or into characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import Fact, unknown_dim
from sardonyx.ops.framework.operator import Operator, describe, operator
from sardonyx.ops.microsoft.regular_expressions import all_matches, compiled, matches
from sardonyx.ops.microsoft.rules import DOMAIN, Array, expect_rank, like

if TYPE_CHECKING:
    from sardonyx.ops.framework.inference import Inference

START, END = "\x02", "\x03"


def split_by(segments: list[str], separator: str) -> list[str]:
    """The parts of each segment between matches of a separator."""
    result = []
    for segment in segments:
        place = 0
        for begin, end in matches(separator, segment):
            result.append(segment[place:begin])
            place = end
        result.append(segment[place:])
    return result


@operator("Tokenizer", domain=DOMAIN)
class Tokenizer(Operator):
    """(C) or (N, C) strings as (…, tokens), filled up with `pad_value`.

    Tokens are what `tokenexp` matches, or what lies between matches of `separators`, which split one after the other;
    one empty separator, or the expression ".", splits into characters. Tokens of fewer than `mincharnum` characters are
    dropped. `mark` puts the characters 2 and 3 around each string's tokens.
    """

    inputs: ClassVar[str] = "X"
    outputs: ClassVar[str] = "Y"
    mark: int
    mincharnum: int
    pad_value: str
    separators: tuple[str, ...] | None = None
    tokenexp: str | None = None
    host_reason: ClassVar[str] = "strings"

    def __init__(self, node: ir.Node, version: int) -> None:
        super().__init__(node, version)
        where = describe(node)
        if bool(self.separators) == bool(self.tokenexp):
            raise ValueError(f"node {where} needs either attribute 'separators' or attribute 'tokenexp'")
        if self.mincharnum < 1:
            raise ValueError(f"attribute 'mincharnum' of node {where} must be at least 1, not {self.mincharnum}")
        self._characters = self.separators == ("",) or self.tokenexp == "."
        if self._characters and self.mincharnum != 1:
            raise ValueError(
                f"attribute 'mincharnum' of node {where} must be 1 where strings are split into characters"
            )
        for pattern in self.separators or (self.tokenexp or "",):
            compiled(pattern)

    def tokens(self, text: str) -> list[str]:
        """The tokens of one string."""
        if self._characters:
            return list(text)
        if self.tokenexp:
            found = all_matches(self.tokenexp, text)
        else:
            found = [text]
            for separator in self.separators or ():
                found = split_by(found, separator)
        if self.mincharnum == 1:
            return list(filter(None, found))
        return [token for token in found if len(token) >= self.mincharnum]

    def run(self, *inputs: Any) -> Sequence[Array]:
        (x,) = inputs
        if x.ndim not in (1, 2):
            raise ValueError(f"input 'X' is expected to have 1 or 2 dimensions, got {x.ndim}")
        if x.size == 0:
            return (np.empty(x.shape, object),)
        rows = list(map(self.tokens, map(str, x.ravel().tolist())))
        longest = max(map(len, rows))
        if longest == 0:
            return (np.empty((*x.shape, 0), object),)
        if self.mark:
            rows = [[START, *row, END] for row in rows]
            longest += 2
        room = [self.pad_value] * longest
        for row in rows:
            row += room[len(row) :]
        result = np.fromiter(chain.from_iterable(rows), object, len(rows) * longest)
        return (result.reshape(*x.shape, longest),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        x = inputs[0]
        expect_rank(x, (1, 2), "X")
        # Without a string in the input the output has no axis of tokens.
        if x is None or x.shape is None or not all(isinstance(size, int) and size > 0 for size in x.shape):
            return [like(x, None)]
        return [like(x, (*x.shape, unknown_dim()))]
