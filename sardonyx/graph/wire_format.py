"""Finds the weights in a serialised model without reading them.

Parsing a model with protobuf copies every weight several times. Here the bytes are scanned in the protobuf wire
format (https://protobuf.dev/programming-guides/encoding): each large ``raw_data`` stays where it is, a reference of
24 bytes takes its place, and what remains (well under a megabyte for models of any size) goes to protobuf. Messages
smaller than the least payload are never opened, so the scan touches little more than the headers of the weights.
"""

from __future__ import annotations

import os
import re
from dataclasses import field

from sardonyx import errors
from sardonyx.light_dataclass import dataclass

LEAST_BYTES = 1024  # payloads below this are cheaper to copy than to refer to
_DEEPEST = 128  # deeper messages are left to protobuf, which refuses more than 100 levels

# Which fields of a message may hold tensors: by message, the field number and the message in it.
_MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_RAW_DATA = 9
SHORT = 5  # the most bytes that protobuf takes for a tag or a length
_VARINT, _FIXED64, _BYTES, _GROUP_START, _GROUP_END, _FIXED32 = range(6)


def _tags(wire: int) -> bytes:
    """A pattern for the tags of one byte of a wire type."""
    return b"[%s]" % b"".join(b"\\x%02x" % (number << 3 | wire) for number in range(1, 16))


# Numbers one after the other, such as those of a long attribute.
_NUMBERS = re.compile(
    rb"(?>%s[\x80-\xff]*+[\x00-\x7f]|%s.{4}|%s.{8})++" % (_tags(_VARINT), _tags(_FIXED32), _tags(_FIXED64)), re.DOTALL
)


class MalformedError(ValueError):
    """The bytes are not a protobuf message."""


@dataclass
class Payloads:
    """The payloads that were left in place, and the references that stand for them.

    A reference is a random token of this load and an index: no model can contain one of its own making.
    """

    token: bytes = field(default_factory=lambda: os.urandom(16))
    views: list[memoryview] = field(default_factory=list)

    def add(self, view: memoryview) -> bytes:
        """Keep a payload and return the reference to write in its place."""
        self.views.append(view)
        return self.token + (len(self.views) - 1).to_bytes(8, "little")

    def find(self, data: bytes) -> memoryview:
        """The payload that `data` refers to; `data` itself where it is no reference."""
        if len(data) == 24 and data.startswith(self.token):
            return self.views[int.from_bytes(data[16:], "little")]
        return memoryview(data)


@dataclass
class _Message:
    """A message being rewritten: where it ends, and the pieces of its new contents."""

    kind: str
    end: int
    tag: bytes
    copied: int  # everything of the message before this offset is in `pieces`
    pieces: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0

    def append(self, piece: bytes | memoryview) -> None:
        self.pieces.append(piece)
        self.size += len(piece)


def split(data: memoryview) -> tuple[bytes, Payloads]:
    """The model's bytes with references in place of its large tensors' data, and those data.

    `errors.InvalidProtobuf` where the bytes cannot be a protobuf message.
    """
    payloads = Payloads()
    try:
        pieces = _rewrite(data, payloads)
    except (MalformedError, IndexError):
        raise errors.InvalidProtobuf("Failed to load model because protobuf parsing failed.") from None
    return b"".join(pieces), payloads


def _rewrite(data: memoryview, payloads: Payloads) -> list[bytes | memoryview]:
    stack = [_Message("model", len(data), b"", 0)]
    position = 0
    while True:
        message = stack[-1]
        if position >= message.end:
            if position > message.end:
                raise MalformedError
            message.append(data[message.copied : message.end])
            if len(stack) == 1:
                return message.pieces
            stack.pop()
            parent = stack[-1]
            parent.append(message.tag + varint_bytes(message.size))
            parent.pieces.extend(message.pieces)
            parent.size += message.size
            parent.copied = position
            continue
        start = position
        tag = data[position]
        position += 1
        if tag >= 0x80:
            tag, position = varint(data, start, SHORT)
        wire = tag & 7
        if wire == _BYTES:
            length = data[position]
            if length < 0x80:  # too short to hold a payload
                position += 1 + length
                continue
            length, position = varint(data, position, SHORT)
            if length > message.end - position:
                raise MalformedError
            if length < LEAST_BYTES:
                position += length
                continue
            number = tag >> 3
            if message.kind == "tensor" and number == _RAW_DATA:
                message.append(data[message.copied : start])
                message.append(b"\x4a\x18" + payloads.add(data[position : position + length]))
                position += length
                message.copied = position
                continue
            inner = _MESSAGES[message.kind].get(number)
            if inner is None or len(stack) >= _DEEPEST:
                position += length
                continue
            message.append(data[message.copied : start])
            stack.append(_Message(inner, position + length, bytes(data[start : _skip(data, start)]), position))
        elif (numbers := _NUMBERS.match(data, start, message.end)) is not None:
            position = numbers.end()
        elif wire == _VARINT:
            position = _skip(data, position)
        elif wire == _FIXED32:
            position += 4
        elif wire == _FIXED64:
            position += 8
        elif wire not in (_GROUP_START, _GROUP_END):
            raise MalformedError


def varint(data: memoryview, position: int, most: int = 10) -> tuple[int, int]:
    """A number of seven bits per byte, and where the next field starts; MalformedError if it takes more than `most`
    bytes."""
    value = 0
    for shift in range(0, 7 * most, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedError


def _skip(data: memoryview, position: int) -> int:
    while data[position] >= 0x80:
        position += 1
    return position + 1


def varint_bytes(value: int) -> bytes:
    """A number in seven bits per byte."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
