"""Keys and values of a decoder between two runs of it, in the form that generation by transformers works with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import Array, is_tensor
from sardonyx.models.part import Part

_LENGTH_AXIS = 2


class CacheName(NamedTuple):
    """A cache of a decoder: the input that takes it, the output that gives it, its layer, whether it is of the encoder.

    `output` is None for a cache that the decoder takes and does not give back, as the keys of cross attention are
    where the encoder's states are no input any more.
    """

    input: str
    output: str | None
    layer: int
    is_cross: bool


class Cached(NamedTuple):
    """The keys and values of one layer."""

    keys: Array
    values: Array


class KeyValues:
    """The caches of a decoder after a run: a tuple of arrays for each layer, (batch, heads, length, head size).

    A layer is (key, value), with the key and value of cross attention behind them in an encoder-decoder; or whatever
    states a layer of another kind has. Tuples of tuples, as Optimum gives them, are read alike: `layers[3][0]`.
    What `transformers.generation` asks of its own caches is here too: length, order, crop.
    """

    is_compileable = False

    def __init__(self, layers: Sequence[Sequence[Array]], length: int | None = None) -> None:
        self._layers = tuple(tuple(layer) for layer in layers)
        self._length = self._measured() if length is None else length

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        return iter(self._layers)

    def __getitem__(self, layer: int) -> tuple[Array, ...]:
        return self._layers[layer]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that are filled."""
        return self._length

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """-1: caches grow without bound."""
        return -1

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: caches grow without bound."""
        return -1

    @property
    def is_linear(self) -> list[bool]:
        """For each layer whether its states have no length."""
        return [not self._has_length(layer) for layer in self._layers]

    @property
    def is_sliding(self) -> list[bool]:
        """For each layer whether it has forgotten what has left the window of its attention."""
        return [self._has_length(layer) and layer[1].shape[_LENGTH_AXIS] < self._length for layer in self._layers]

    @property
    def is_croppable(self) -> bool:
        """Whether positions can be taken back: not from states that hold the sum of all, nor where some are gone."""
        return not any(self.is_linear) and not any(self.is_sliding)

    def activate_past_recording(self) -> None:
        """Nothing: earlier positions are all there."""

    @property
    def self_attention_cache(self) -> KeyValues:
        """The first two arrays of each layer."""
        return KeyValues([layer[:2] for layer in self._layers], self._length)

    @property
    def cross_attention_cache(self) -> KeyValues:
        """The keys and values of the encoder's states."""
        return KeyValues([layer[2:4] for layer in self._layers])

    @property
    def layers(self) -> list[Cached]:
        """Keys and values by layer."""
        return [Cached(layer[0], layer[1]) for layer in self._layers]

    def reordered(self, rows: Array) -> KeyValues:
        """Caches whose rows are these. Rows of one input share the encoder's keys: those stay as they are."""
        picked = [[*(_rows(one, rows) for one in layer[:2]), *layer[2:]] for layer in self._layers]
        return KeyValues(picked, self._length)

    def reorder_cache(self, beam_idx: Array) -> None:
        """Take these rows, in place."""
        self._layers = self.reordered(beam_idx)._layers

    def batch_select_indices(self, indices: Array) -> None:
        """Take these rows of every array, in place."""
        self._layers = tuple(tuple(_rows(one, indices) for one in layer) for layer in self._layers)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row this many times, in place."""
        self._layers = tuple(tuple(_repeated(one, repeats) for one in layer) for layer in self._layers)

    def crop(self, length: int) -> None:
        """Keep `length` positions, or take back `-length`, in place; Fail for states that cannot forget."""
        kept = length if length > 0 else self._length + length
        if kept >= self._length:
            return
        if not self.is_croppable:
            raise errors.Fail(
                "The model has states without a length, or caches of a window alone, from which no position can be "
                "taken back"
            )
        self._layers = tuple((*(self._cut(one, kept) for one in layer[:2]), *layer[2:]) for layer in self._layers)
        self._length = kept

    def _cut(self, array: Array, length: int) -> Array:
        """The first positions; a cache that is longer than what it holds keeps its size, which the model asks for."""
        return array[:, :, :length] if array.shape[_LENGTH_AXIS] == self._length else array

    def flat(self) -> list[Array]:
        """All arrays, layer by layer."""
        return [one for layer in self._layers for one in layer]

    def _measured(self) -> int:
        return next((int(layer[1].shape[_LENGTH_AXIS]) for layer in self._layers if self._has_length(layer)), 0)

    @staticmethod
    def _has_length(layer: tuple[Array, ...]) -> bool:
        return len(layer) in (2, 4) and all(one.ndim == 4 for one in layer)


def cache_names(part: Part) -> list[CacheName]:
    """The caches of a decoder by layer, within it in the model's order: `past…` inputs beside `present…` outputs.

    Empty for a model without caches.
    """
    outputs = {_stem(name): name for name in part.outputs if name.startswith("present")}
    found = []
    for name in part.inputs:
        if not name.startswith("past") or name == "past_length":
            continue
        stem = _stem(name)
        number = re.search(r"\d+", stem)
        is_cross = "encoder" in stem or "cross" in stem
        found.append(CacheName(name, outputs.get(stem), int(number.group()) if number else 0, is_cross))
    return sorted(found, key=lambda one: one.layer)


def given_names(part: Part) -> list[CacheName]:
    """The caches that a decoder without cache inputs gives: a first step that has no past."""
    found = []
    for name in part.outputs:
        if name.startswith("present"):
            stem = _stem(name)
            number = re.search(r"\d+", stem)
            is_cross = "encoder" in stem or "cross" in stem
            found.append(CacheName("", name, int(number.group()) if number else 0, is_cross))
    return sorted(found, key=lambda one: one.layer)


def by_layer(names: Sequence[CacheName], values: Mapping[str, Array], length: int, kept: KeyValues | None) -> KeyValues:
    """The caches of a run's outputs, in layers; those of cross attention that it did not give are the `kept` ones."""
    earlier = iter(kept.flat()) if kept is not None else iter(())
    layers: dict[int, list[Array]] = {}
    for name in names:
        before = next(earlier, None)
        stays = before is not None and (name.is_cross or name.output is None)
        layers.setdefault(name.layer, []).append(before if stays else values[name.output or ""])
    return KeyValues(list(layers.values()), length)


def grows(part: Part, name: str) -> bool:
    """Whether a cache gets longer by the tokens that are read; states, and caches that forget, keep their size."""
    shape = part.input_shapes[name]
    return len(shape) == 4 and not isinstance(shape[_LENGTH_AXIS], int) and name not in part.fewest_positions


def key_values(given: Any) -> KeyValues | None:
    """Caches of whatever a caller has: ours, tuples of tuples, a cache of transformers; None for none and for empty."""
    if given is None or isinstance(given, KeyValues):
        return given or None
    if isinstance(given, tuple | list):
        if not given:
            return None
        return KeyValues(given if isinstance(given[0], tuple | list) else [given])
    if hasattr(given, "self_attention_cache"):
        own, cross = key_values(given.self_attention_cache), key_values(given.cross_attention_cache)
        if own is None:
            return None
        return own if cross is None else KeyValues([(*a, *b) for a, b in zip(own, cross, strict=True)])
    if hasattr(given, "layers"):
        layers = [(layer.keys, layer.values) for layer in given.layers if getattr(layer, "keys", None) is not None]
        return KeyValues(layers) if layers else None
    raise errors.InvalidArgument(
        f"past_key_values of type {type(given).__name__} are no caches: expected tuples of key and value for each "
        "layer, or what an earlier call gave"
    )


def empty(
    part: Part, names: Sequence[CacheName], batch: int, head_size: int, cross_length: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    """Caches without a position by input name; states that have no length are zeros, and so are caches that forget.

    Those of cross attention have `cross_length` positions of zeros: the length has one name with that of the encoder's
    states, so that both are the same. `head_size` stands for a last axis whose size the model leaves open.
    """
    found = {}
    for one in names:
        shape = [*part.input_shapes[one.input]]
        last = len(shape) - 1
        free = {0: batch, last: head_size}
        length = cross_length if one.is_cross else part.fewest_positions.get(one.input, 0)
        sizes = [size if isinstance(size, int) and axis else free.get(axis, length) for axis, size in enumerate(shape)]
        found[one.input] = np.zeros(sizes, part.inputs[one.input])
    return found


def _stem(name: str) -> str:
    return re.sub(r"^(past|present)(_key_values?)?[._]?", "", name)


def _rows(array: Array, rows: Array) -> Array:
    if is_tensor(array):
        return array.index_select(0, rows.to(array.device))
    return array[np.asarray(rows)]


def _repeated(array: Array, repeats: int) -> Array:
    return array.repeat_interleave(repeats, dim=0) if is_tensor(array) else np.repeat(array, repeats, axis=0)
