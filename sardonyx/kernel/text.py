"""Expressions as lines of text, for people: one line for each value, arguments before those who use them."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.kernel.expr import Apply, Constant, Expr, Input, Reduce, RowIndex, RowLength, arguments, walk

_SIGNS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "less": "<",
    "less_equal": "<=",
    "equal": "==",
}


def text_of(outputs: Sequence[Expr], inputs: Sequence[str], results: Sequence[str]) -> list[str]:
    """The lines of a kernel that computes `outputs`: ``t0 = exp(x0)``, then ``y = t0 * x1``.

    `inputs` are the names of the inputs by their numbers, `results` those of the outputs. A value that has several
    readers, or a long text, has a line of its own; any other stands where it is read.
    """
    readers: dict[int, int] = {}
    for expr in walk(outputs):
        for arg in arguments(expr):
            readers[id(arg)] = readers.get(id(arg), 0) + 1
    names: dict[int, str] = {}
    for name, root in zip(results, outputs, strict=True):
        if arguments(root):
            names.setdefault(id(root), name)
    texts: dict[int, str] = {}
    lines: list[str] = []
    for expr in walk(outputs):
        text = _text(expr, texts, inputs)
        own = names.get(id(expr))
        if own is None and arguments(expr) and (readers[id(expr)] > 1 or len(text) > _LONG):
            own = f"t{len(lines)}"
        if own is not None:
            lines.append(f"{own}: {expr.dtype} = {_bare(text)}")
            text = own
        texts[id(expr)] = text
    for name, root in zip(results, outputs, strict=True):
        if names.get(id(root)) != name:  # an input, or what another output is as well
            lines.append(f"{name}: {root.dtype} = {texts[id(root)]}")
    return lines


# Characters from which on a value has a line of its own.
_LONG = 40


def _text(expr: Expr, texts: dict[int, str], inputs: Sequence[str]) -> str:
    if isinstance(expr, Input):
        return inputs[expr.index]
    if isinstance(expr, Constant):
        return str(expr.dtype.type(expr.value))
    if isinstance(expr, RowLength):
        return "row_length"
    if isinstance(expr, RowIndex):
        return "row_index"
    given = [texts[id(arg)] for arg in arguments(expr)]
    if isinstance(expr, Reduce):
        return f"{expr.kind}_of_row({_bare(given[0])})"
    assert isinstance(expr, Apply)
    sign = _SIGNS.get(expr.primitive)
    if sign is not None and len(given) == 2:
        return f"({given[0]} {sign} {given[1]})"
    more = [str(expr.dtype)] if expr.primitive == "cast" else []
    return f"{expr.primitive}({', '.join([*map(_bare, given), *more])})"


def _bare(text: str) -> str:
    """Without brackets around all of it."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 else text
    return text
