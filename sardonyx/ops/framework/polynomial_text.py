"""The text of a polynomial, and the polynomial of a text: what a dimension of onnx-ir keeps."""

from __future__ import annotations

import ast
import functools
import math
import re

from sardonyx.ops.framework import polynomial
from sardonyx.ops.framework.polynomial import Atom, Polynomial

_NAME = re.compile(r"[^\W\d][\w.]*")
_LARGEST_EXPONENT = 8
_MOST_TERMS = 256


def write(a: Polynomial) -> str:
    """A polynomial as sympy writes it."""
    text = ""
    for monomial, coefficient in a.terms:
        # A number over the divisor in lowest terms: every term has its own.
        number, divisor = _reduced(abs(coefficient), a.divisor)
        factors = [_power(*factor) for factor in monomial]
        if number != 1 or not factors:
            factors.insert(0, str(number))
        term = "*".join(factors) + (f"/{divisor}" if divisor != 1 else "")
        if text:
            text += f" - {term}" if coefficient < 0 else f" + {term}"
        else:
            text = f"-{term}" if coefficient < 0 else term
    return text or "0"


def _reduced(number: int, divisor: int) -> tuple[int, int]:
    common = math.gcd(number, divisor)
    return number // common, divisor // common


def _power(one: Atom, exponent: int) -> str:
    text = one if isinstance(one, str) else f"{one.name}({', '.join(map(write, one.arguments))})"
    return text if exponent == 1 else f"{text}**{exponent}"


@functools.lru_cache(maxsize=65536)
def read(text: str) -> Polynomial | None:
    """The polynomial that a text states; None for what is none, or is written in a form that none has."""
    if _NAME.fullmatch(text):
        return polynomial.atom(text)
    if not text.isascii():
        return None
    try:
        return _of(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _of(node: ast.expr) -> Polynomial | None:
    match node:
        case ast.Name(id=name):
            return polynomial.atom(name)
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return polynomial.constant(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = _of(operand)
            return None if found is None else polynomial.scale(found, -1)
        case ast.BinOp(left=left, op=operator, right=right):
            first, second = _of(left), _of(right)
            return None if first is None or second is None else _binary(operator, first, second)
        case ast.Call(func=ast.Name(id="floor"), args=[argument], keywords=[]):
            found = _of(argument)
            return None if found is None else polynomial.floor(found)
        case ast.Call(func=ast.Name(id="Min" | "Max" as name), args=arguments, keywords=[]) if len(arguments) > 1:
            choices = [found for found in map(_of, arguments) if found is not None and found.divisor == 1]
            if len(choices) < len(arguments):
                return None
            return polynomial.extreme("Min" if name == "Min" else "Max", *choices)
    return None


def _binary(operator: ast.operator, a: Polynomial, b: Polynomial) -> Polynomial | None:
    match operator:
        case ast.Add():
            return polynomial.add(a, b)
        case ast.Sub():
            return polynomial.subtract(a, b)
        case ast.Mult():
            return polynomial.multiply(a, b)
        case ast.Div():
            divisor = b.number
            return polynomial.scale(a, 1, divisor) if divisor is not None and divisor > 0 else None
        case ast.Pow():
            exponent = b.number
            if exponent is None or not 0 < exponent <= _LARGEST_EXPONENT or len(a.terms) ** exponent > _MOST_TERMS:
                return None
            return functools.reduce(polynomial.multiply, [a] * exponent)
    return None
