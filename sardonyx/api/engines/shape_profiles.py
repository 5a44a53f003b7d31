"""Profiles of shapes: for each input of a model the least, the usual and the largest shape, as in
``ids:1x8,1x128,1x512;mask:1x8,1x128,1x512``. One shape stands for all three."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sardonyx import errors
from sardonyx.api.building.signature import Declared
from sardonyx.light_dataclass import dataclass

KEY = "sardonyx.engine_profiles"

Shape = tuple[int, ...]

LEAST, USUAL, LARGEST = range(3)
_WORDS = ("min", "opt", "max")

_SHAPE = re.compile(r"(\d+(x\d+)*)?")


@dataclass(frozen=True)
class Profile:
    """Three shapes by the name of an input."""

    shapes: Mapping[str, tuple[Shape, Shape, Shape]]

    def content(self) -> dict[str, list[list[int]]]:
        """The same as JSON has it."""
        return {name: [list(shape) for shape in three] for name, three in self.shapes.items()}


def parse(text: str) -> Profile:
    """A profile from its text; InvalidArgument where that is of another form."""
    found: dict[str, tuple[Shape, Shape, Shape]] = {}
    for part in filter(None, text.split(";")):
        name, colon, shapes = part.strip().rpartition(":")
        texts = shapes.split(",")
        if not colon or not name or len(texts) not in (1, 3) or not all(map(_SHAPE.fullmatch, texts)):
            raise errors.InvalidArgument(
                f"a profile of shapes reads NAME:MIN,OPT,MAX or NAME:SHAPE, as in ids:1x8,1x128,1x512, not {part!r}"
            )
        if name in found:
            raise errors.InvalidArgument(f"a profile names the input {name!r} twice: give one entry for each input")
        read = [tuple(map(int, filter(None, one.split("x")))) for one in texts]
        least, usual, largest = read if len(read) == 3 else read * 3
        found[name] = least, usual, largest
    return Profile(found)


def of_sizes(inputs: Sequence[Declared], sizes: Mapping[str, int]) -> Profile:
    """The profile of one shape for each tensor, whose symbolic dimensions are these sizes, or 1."""
    found = {}
    for value in filter(_has_shape, inputs):
        if value.dims is None:
            raise errors.InvalidArgument(
                f"the rank of the input {value.name!r} is not known: name its shape in a profile"
            )
        shape = tuple(dim if isinstance(dim, int) else sizes.get(str(dim), 1) for dim in value.dims)
        found[value.name] = (shape, shape, shape)
    return Profile(found)


def completed(profile: Profile, inputs: Sequence[Declared]) -> Profile:
    """A profile with shapes for all tensors among the inputs of a model. Those that it does not name have fixed
    dimensions, or such as inputs that it names have, too.

    InvalidArgument where shapes do not fit the inputs, or least, usual and largest are not in this order.
    """
    inputs = list(filter(_has_shape, inputs))
    known = {value.name: value for value in inputs}
    for name in profile.shapes:
        if name not in known:
            raise errors.InvalidArgument(f"a profile names {name!r}, but the inputs are {', '.join(known) or 'none'}")
    sizes: list[dict[str, int]] = [{}, {}, {}]
    for name, three in profile.shapes.items():
        _check(known[name], three)
        for index, shape in enumerate(three):
            sizes[index].update(
                (str(dim), size) for dim, size in zip(known[name].dims or (), shape, strict=False) if _is_symbol(dim)
            )
    return Profile({value.name: profile.shapes.get(value.name) or _implied(value, sizes) for value in inputs})


def _implied(value: Declared, sizes: Sequence[Mapping[str, int]]) -> tuple[Shape, Shape, Shape]:
    """The shapes of an input that a profile does not name."""
    three: list[Shape] = []
    for found in sizes:
        dims = value.dims if value.dims is not None else (None,)
        shape = tuple(dim if isinstance(dim, int) else found.get(str(dim), -1) for dim in dims)
        if -1 in shape:
            raise errors.InvalidArgument(
                f"a profile must name the input {value.name!r}, whose dimensions are not fixed, as in "
                f"{value.name}:MIN,OPT,MAX"
            )
        three.append(shape)
    least, usual, largest = three
    return least, usual, largest


def _check(value: Declared, three: tuple[Shape, Shape, Shape]) -> None:
    dims = value.dims
    for word, shape in zip(_WORDS, three, strict=True):
        fits = dims is None or (
            len(dims) == len(shape)
            and all(_is_symbol(dim) or dim == size for dim, size in zip(dims, shape, strict=True))
        )
        if not fits:
            expected = "x".join("?" if dim is None else str(dim) for dim in dims or ())
            raise errors.InvalidArgument(
                f"the {word} shape {_written(shape)} of a profile does not fit the input {value.name!r}, which is "
                f"{expected}"
            )
    least, usual, largest = three
    if not len(least) == len(usual) == len(largest) or not all(
        one <= other <= most for one, other, most in zip(least, usual, largest, strict=True)
    ):
        raise errors.InvalidArgument(
            f"the shapes of {value.name!r} in a profile must not decrease from min to opt to max: "
            f"{', '.join(map(_written, three))}"
        )


def _has_shape(value: Declared) -> bool:
    """Whether an input is a tensor; sequences, maps and what may be left out have no profile."""
    return value.kind is not None and value.kind.form == "tensor"


def _is_symbol(dim: object) -> bool:
    return not isinstance(dim, int)


def _written(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"
