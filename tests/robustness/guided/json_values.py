"""Changes to values of JSON, as a program would make them that wants a reader to stumble."""

from __future__ import annotations

import json
import random
from typing import Any

_DEEP = "nested deeply"
_DEPTH = 20_000
# What no list of Python's holds, and what no number of it should be believed to be.
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63 - 1,
    2**64,
    -(2**63),
    10**400,
    0.5,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "weights",
    "\ud800",
    "x" * 5000,
    [],
    {},
    [[]],
    [0] * 1000,
    {"": None},
    _DEEP,
)


def changed_value(value: Any, choice: random.Random) -> Any:
    """A copy of a value of JSON, in which one part is something else, is missing, or is there once more."""
    copy = json.loads(json.dumps(value))
    holders = [holder for holder in _holders(copy) if holder]
    if not holders or choice.random() < 0.02:
        return choice.choice(_VALUES)
    holder = choice.choice(holders)
    place = choice.choice(sorted(holder) if isinstance(holder, dict) else range(len(holder)))
    kind = choice.randrange(6)
    if kind == 0:
        del holder[place]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(place, holder[place])
    elif kind == 2 and isinstance(holder[place], int | float) and abs(holder[place]) < 2**64:
        holder[place] += choice.choice((-1, 1, 7, 4096))
    elif kind == 3:
        holder[place] = json.loads(json.dumps(choice.choice(_parts(choice.choice(holders)))))
    else:
        holder[place] = choice.choice(_VALUES)
    return copy


def text_of(value: Any) -> bytes:
    """The value as text; one mark in it stands for lists in lists, deeper than any parser follows."""
    return json.dumps(value).replace(f'"{_DEEP}"', "[" * _DEPTH + "]" * _DEPTH).encode()


def _parts(holder: Any) -> list[Any]:
    return list(holder.values()) if isinstance(holder, dict) else list(holder)


def _holders(value: Any) -> list[Any]:
    """The lists and objects in a value, itself included."""
    found, waiting = [], [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            found.append(one)
            waiting.extend(_parts(one))
    return found
