"""Strings: StringNormalizer, StringConcat, StringSplit, RegexFullMatch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.ops.framework.facts import UNKNOWN, Dim, Fact, broadcast, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.microsoft.regular_expressions import compiled


def strings(values: Sequence[str], shape: Sequence[int]) -> Array:
    """A tensor of strings of a shape."""
    result: Array = np.empty(len(values), object)
    result[:] = values
    return result.reshape(tuple(shape))


class _Text(Operator):
    host_reason = "strings are Python objects"


def _upper(text: str) -> str:
    """Capitals character by character, as a locale's table has them: a letter stays where its capital is two."""
    if text.isascii():
        return text.upper()
    return "".join(big if len(big := letter.upper()) == 1 else letter for letter in text)


def _lower(text: str) -> str:
    if text.isascii():
        return text.lower()
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)


@operator("StringNormalizer", since=10)
class StringNormalizer(_Text):
    """(c) or (1, c) strings without stop words, in lower or upper case where asked for; [""] where none is left.

    Cases change by Unicode's rules whatever `locale` says, so that no locale need be installed.
    """

    case_change_action: str = "NONE"
    is_case_sensitive: int = 0
    locale: str = ""
    stopwords: tuple[str, ...] = ()

    def run(self, texts: Array) -> Sequence[Value]:
        if texts.ndim not in (1, 2) or (texts.ndim == 2 and texts.shape[0] != 1):
            raise ValueError(f"the input must have shape [C] or [1, C], not {list(texts.shape)}")
        changes: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": _lower, "UPPER": _upper}
        if self.case_change_action not in changes:
            raise ValueError(f"case_change_action '{self.case_change_action}' is none of {', '.join(changes)}")
        same: Callable[[str], str] = str if self.is_case_sensitive else _lower
        stop = {same(word) for word in self.stopwords}
        change = changes[self.case_change_action]
        given = map(str, texts.ravel().tolist())
        kept = [change(text) for text in given if same(text) not in stop] if stop else list(map(change, given))
        kept = kept or [""]
        return (strings(kept, (len(kept),) if texts.ndim == 1 else (1, len(kept))),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        rank = (inputs[0] or UNKNOWN).rank
        if rank is not None and rank not in (1, 2):
            raise ValueError(f"the input must have 1 or 2 dimensions, not {rank}")
        shape: tuple[Dim, ...] = (unknown_dim(),) if rank == 1 else (1, unknown_dim())
        return [tensor(ir.DataType.STRING, None if rank is None else shape)]


@operator("StringConcat", since=20)
class StringConcat(_Text):
    """Strings joined pair by pair; the inputs broadcast."""

    def run(self, first: Array, second: Array) -> Sequence[Value]:
        left, right = np.broadcast_arrays(first, second)
        joined = [f"{a}{b}" for a, b in zip(left.ravel(), right.ravel(), strict=True)]
        return (strings(joined, left.shape),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        shapes = [(fact or UNKNOWN).shape for fact in inputs]
        known = [shape for shape in shapes if shape is not None]
        return [tensor(ir.DataType.STRING, broadcast(known) if len(known) == len(shapes) else None)]


@operator("StringSplit", since=20)
class StringSplit(_Text):
    """The parts of each string between delimiters, filled up with "", and their numbers.

    Without a delimiter strings are split at runs of white space. At most `maxsplit` delimiters count.
    """

    delimiter: str | None = None
    maxsplit: int | None = None

    def run(self, texts: Array) -> Sequence[Value]:
        limit = -1 if self.maxsplit is None else self.maxsplit
        parts = [self._parts(str(text), limit) for text in texts.ravel()]
        counts = np.array([len(row) for row in parts], np.int64).reshape(texts.shape)
        width = int(counts.max(initial=0))
        padded = [part for row in parts for part in (*row, *[""] * (width - len(row)))]
        return strings(padded, (*texts.shape, width)), counts

    def _parts(self, text: str, limit: int) -> list[str]:
        return text.split(self.delimiter or None, limit) if text else []

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        shape = (inputs[0] or UNKNOWN).shape
        parts = None if shape is None else (*shape, unknown_dim())
        return [tensor(ir.DataType.STRING, parts), tensor(ir.DataType.INT64, shape)]


@operator("RegexFullMatch", since=20)
class RegexFullMatch(_Text):
    """Whether an expression in RE2's syntax matches each whole string; "." matches no line break."""

    pattern: str

    def run(self, texts: Array) -> Sequence[Value]:
        flags = re.match(r"\(\?([ims]+)\)", self.pattern)
        letters = flags.group(1) if flags else ""
        rest = self.pattern[flags.end() :] if flags else self.pattern
        expression = compiled(f"(?{letters}{'' if 's' in letters else '-s'}:{rest})")
        found = [expression.fullmatch(str(text)) is not None for text in texts.ravel()]
        return (np.array(found, bool).reshape(texts.shape),)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.BOOL, (inputs[0] or UNKNOWN).shape)]
