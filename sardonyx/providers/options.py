"""Options of execution providers: a dataclass per provider, filled from the texts that callers give.

    @dataclass(frozen=True)
    class Options:
        device_id: int = option(0, "Which device runs the session.", minimum=0)
        precision: str = option("f32", "Arithmetic of matrix products.", choices=("f32", "bf16"))

Callers pass option values as strings; each field's type, bounds and choices decide what is accepted.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx.light_dataclass import dataclass

_FALSE = ("0", "false")
_TRUE = ("1", "true")


def option(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """A field of an options dataclass: its default, what it does, and which values it takes."""
    metadata = {"doc": doc, "minimum": minimum, "maximum": maximum, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class NoOptions:
    """The options of a provider that has none."""


def parse_options(provider: str, kind: type[Any], given: Mapping[str, str]) -> Any:
    """An object of the dataclass `kind`; ValueError for an unknown key or a value that its field refuses."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    types = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key not in fields:
            known = ", ".join(fields) or "none"
            raise ValueError(f"Invalid {provider} option: {key}. Its options are: {known}")
        values[key] = _parse(provider, fields[key], types[key], str(text))
    return kind(**values)


def option_texts(options: Any) -> dict[str, str]:
    """Every option with its value as text: numbers in decimal, booleans as 0 and 1."""
    texts: dict[str, str] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        texts[field.name] = str(int(value)) if isinstance(value, bool) else str(value)
    return texts


def _parse(provider: str, field: dataclasses.Field[Any], kind: type[Any], text: str) -> Any:
    where = f"{provider} option {field.name}"
    if kind is bool:
        if text.lower() not in (*_FALSE, *_TRUE):
            raise ValueError(f"{where} must be 0 or 1, got '{text}'")
        return text.lower() in _TRUE
    if kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"{where} must be a number of type {kind.__name__}, got '{text}'") from None
        low, high = field.metadata.get("minimum"), field.metadata.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = " and ".join(
                f"{word} {bound}" for word, bound in (("at least", low), ("at most", high)) if bound is not None
            )
            raise ValueError(f"{where} must be {bounds}, got {text}")
        return value
    choices = field.metadata.get("choices")
    if choices is not None and text not in choices:
        raise ValueError(f"{where} must be one of {', '.join(choices)}, got '{text}'")
    return text
