"""Regular expressions in RE2's syntax and with its longest matches, by Python's `re`.

Syntax: https://github.com/google/re2/wiki/Syntax. Perl's classes are ASCII only; classes of general categories
(``\\pL``, ``\\p{Lu}``, ``\\P{N}``) and POSIX classes (``[[:space:]]``) are spelt out.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterator

_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}

_CATEGORIES = frozenset(
    re.findall(
        r"\w+",
        "C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs",
    )
)


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """An expression; ValueError for one that cannot be read."""
    try:
        return re.compile(_translated(pattern), re.DOTALL | re.ASCII)
    except re.error as error:
        raise ValueError(f"the regular expression '{pattern}' cannot be read: {error}") from error


def matches(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    """Where an expression matches, from left to right: (begin, end), the longest match of each place, none empty."""
    expression = compiled(pattern)
    if not _has_choice(pattern):
        yield from (one.span() for one in expression.finditer(text) if one.end() > one.start())
        return
    place = 0
    while place <= len(text) and (found := expression.search(text, place)) is not None:
        begin, end = found.span()
        end = next((e for e in range(len(text), end, -1) if expression.fullmatch(text, begin, e)), end)
        if end > begin:
            yield begin, end
        place = max(end, begin + 1)


def all_matches(pattern: str, text: str) -> list[str]:
    """The texts of these matches; empty ones may be among them."""
    expression = compiled(pattern)
    if expression.groups or _has_choice(pattern):
        return [text[begin:end] for begin, end in matches(pattern, text)]
    found: list[str] = expression.findall(text)
    return found


@functools.lru_cache(maxsize=256)
def _has_choice(pattern: str) -> bool:
    """Whether a match may be shorter than the longest one: else a greedy match is that."""
    return re.search(r"\||[*+?}]\?", pattern) is not None


def _translated(pattern: str) -> str:
    """The expression in the syntax of `re`."""
    result: list[str] = []
    inside = False  # of a class in brackets
    index = 0
    while index < len(pattern):
        rest = pattern[index:]
        if posix := re.match(r"\[:(\^?)(\w+):\]", rest) if inside else None:
            result.append(_posix(posix.group(2), bool(posix.group(1))))
            index += posix.end()
        elif category := re.match(r"\\([pP])(?:\{(\^?)(\w+)\}|(\w))", rest):
            negated = (category.group(1) == "P") != bool(category.group(2))
            body = _category(category.group(3) or category.group(4), negated)
            result.append(body if inside else f"[{body}]")
            index += category.end()
        elif code := re.match(r"\\x\{([0-9A-Fa-f]+)\}", rest):
            result.append(f"\\U{int(code.group(1), 16):08x}")
            index += code.end()
        elif rest.startswith("\\Q") and not inside:
            literal = rest[2:].split("\\E", 1)[0]
            result.append(re.escape(literal))
            index += 2 + len(literal) + (2 if "\\E" in rest[2:] else 0)
        elif rest.startswith("\\"):
            result.append("\\Z" if rest[:2] == "\\z" else rest[:2])
            index += 2
        elif not inside and (opening := re.match(r"\[\^?\]?", rest)):
            # A bracket that closes right after the opening one is a member of the class.
            result.append(opening.group().replace("]", "\\]"))
            inside = True
            index += opening.end()
        else:
            inside = inside and rest[0] != "]"
            result.append("\\[" if inside and rest[0] == "[" else rest[0])
            index += 1
    return "".join(result)


def _posix(name: str, negated: bool) -> str:
    if name not in _POSIX:
        raise ValueError(f"[:{name}:] is no class of characters")
    if not negated:
        return _POSIX[name]
    inner = re.compile(f"[{_POSIX[name]}]")
    return _ranges(tuple(point for point in range(128) if not inner.match(chr(point)))) + r"\x80-\U0010ffff"


@functools.cache
def _category(name: str, negated: bool) -> str:
    """The members of a general category of Unicode, as ranges."""
    if name not in _CATEGORIES:
        raise ValueError(f"\\p{{{name}}} is no general category of Unicode; scripts are not known")
    points = range(sys.maxunicode + 1)
    return _ranges(tuple(p for p in points if unicodedata.category(chr(p)).startswith(name) != negated))


def _ranges(points: tuple[int, ...]) -> str:
    """Code points in order, as ranges of a class."""
    parts: list[str] = []
    begin = 0
    for index, point in enumerate(points):
        if index + 1 == len(points) or points[index + 1] != point + 1:
            parts.append(f"\\U{points[begin]:08x}-\\U{point:08x}")
            begin = index + 1
    return "".join(parts)
