"""Joins the object code of kernels into one image that runs wherever it lies in memory.

Kernels are small: code, constants beside it, jumps within, and calls of a few functions of the C library. So is what
joins them. All sections lie one behind the other, and what refers to another place does so by its distance, which is
filled in here, once. Functions of the process are called through slots at the end of the image, the only words of it
that a process fills in (`runtime/native/native_image.py`): neither LLVM nor a linker of the system has a part in
loading it.

The format is ELF, the relocations are those of the System V ABI for x86-64 (version 1.0, table 4.9). Object code of
other machines and systems, and whatever kernels do not contain, is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from sardonyx.light_dataclass import dataclass

PAGE = 4096

_ELF_64_LITTLE = b"\x7fELF\x02\x01"
_X86_64 = 62
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_PROGRAM_BITS, _SYMBOL_TABLE, _RELOCATIONS, _NOTE = 1, 2, 4, 7  # types of sections
_WRITE, _ALLOCATED, _THREAD_LOCAL = 1, 2, 1 << 10  # flags of sections
_UNDEFINED = 0  # the section of what another file defines

_DISTANCE = frozenset({2, 4})  # R_X86_64_PC32, R_X86_64_PLT32
_SLOT_DISTANCE = frozenset({9, 41, 42})  # R_X86_64_GOTPCREL and those that a linker may relax
_JUMP_TO_SLOT = b"\xff\x25"  # jmp *distance(%rip)
_JUMP_BYTES, _SLOT_BYTES = 8, 8


class NotLinkableError(Exception):
    """Why object code cannot become a part of an image."""


@dataclass(frozen=True)
class Image:
    """`code` is whole pages. `entries` says where each function begins, by its key; `slots` are the places of the words
    that hold the address of a function of the process, with its name."""

    code: np.ndarray[Any, np.dtype[np.uint8]]
    entries: Mapping[str, int]
    slots: Sequence[tuple[int, str]]


def link(objects: Mapping[str, bytes], symbol: str) -> Image:
    """One image of object files, whose entries are the functions called `symbol` of each; NotLinkableError."""
    image = _Image()
    entries = {key: image.add(code, symbol) for key, code in objects.items()}
    return image.finished(entries)


class _Section(NamedTuple):
    """A section of an object file, in the order of the file."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Fixup(NamedTuple):
    """Four bytes of the image that are to hold a distance: to a place in it, or to what stands for a function."""

    place: int
    target: int | str
    addend: int
    takes_slot: bool  # the word that holds the function's address, not the jump through it


@dataclass
class _Image:
    """An image that grows."""

    code: bytearray = field(default_factory=bytearray)
    fixups: list[_Fixup] = field(default_factory=list)

    def add(self, data: bytes, symbol: str) -> int:
        """Take an object file in; where its function `symbol` lies."""
        try:
            found = self._add(data).get(symbol)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise NotLinkableError(f"the object file contradicts itself: {error}") from error
        if found is None:
            raise NotLinkableError(f"the object file has no function {symbol}")
        return found

    def _add(self, data: bytes) -> dict[str, int]:
        """The same; all places that have a name."""
        if data[: len(_ELF_64_LITTLE)] != _ELF_64_LITTLE:
            raise NotLinkableError("the object file is not in ELF")
        header = _HEADER.unpack_from(data)
        machine, table, count = header[2], header[6], header[12]
        if machine != _X86_64:
            raise NotLinkableError(f"images are made for x86-64, not for machine {machine} of ELF")
        sections = [_Section(*_SECTION.unpack_from(data, table + index * _SECTION.size)) for index in range(count)]
        names = sections[header[13]]
        bases: dict[int, int] = {}
        for index, section in enumerate(sections):
            if section.flags & _ALLOCATED and section.size and section.kind != _NOTE:
                name = _text(data, names.offset + section.name)
                if name != ".eh_frame":  # kernels raise nothing
                    bases[index] = self._place(data, section, name)
        symbols: list[int | str] = []
        named: dict[str, int] = {}
        for section in sections:
            if section.kind == _SYMBOL_TABLE:
                texts = sections[section.link].offset
                for start in range(section.offset, section.offset + section.size, _SYMBOL.size):
                    name, _, _, home, value, _ = _SYMBOL.unpack_from(data, start)
                    text = _text(data, texts + name)
                    symbols.append(_symbol(text, home, value, bases))
                    if home in bases:
                        named[text] = bases[home] + value
        for section in sections:
            if section.kind == _RELOCATIONS and section.info in bases:
                self._note(data, section, bases[section.info], symbols)
        return named

    def _place(self, data: bytes, section: _Section, name: str) -> int:
        """Append a section; where it begins."""
        if section.kind != _PROGRAM_BITS or section.flags & (_WRITE | _THREAD_LOCAL):
            raise NotLinkableError(f"section {name} is neither code nor constants")
        if section.offset + section.size > len(data) or section.alignment > PAGE:
            raise NotLinkableError(f"section {name} does not fit its file")
        self.code += bytes(-len(self.code) % max(section.alignment, 1))
        base = len(self.code)
        self.code += data[section.offset : section.offset + section.size]
        return base

    def _note(self, data: bytes, section: _Section, base: int, symbols: Sequence[int | str]) -> None:
        for start in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(data, start)
            kind, target = info & 0xFFFFFFFF, symbols[info >> 32]
            if kind not in _DISTANCE and kind not in _SLOT_DISTANCE:
                raise NotLinkableError(f"relocations of type {kind} are not among those of kernels")
            takes_slot = kind in _SLOT_DISTANCE
            if target == "" or (takes_slot and isinstance(target, int)):
                raise NotLinkableError("a kernel asks for the address of what lies beside it")
            self.fixups.append(_Fixup(base + offset, target, addend, takes_slot))

    def finished(self, entries: Mapping[str, int]) -> Image:
        """The image with all distances in it, and jumps and slots of the functions of the process at its end."""
        functions = sorted({fixup.target for fixup in self.fixups if isinstance(fixup.target, str)})
        jumps = self._room(_JUMP_BYTES * len(functions))
        slots = self._room(_SLOT_BYTES * len(functions))
        for index in range(len(functions)):
            place = jumps + index * _JUMP_BYTES
            self.code[place : place + len(_JUMP_TO_SLOT)] = _JUMP_TO_SLOT
            self._write(place + len(_JUMP_TO_SLOT), slots + index * _SLOT_BYTES - 4)
        numbers = {name: index for index, name in enumerate(functions)}
        for fixup in self.fixups:
            target = fixup.target
            if isinstance(target, str):
                number = numbers[target]
                target = slots + number * _SLOT_BYTES if fixup.takes_slot else jumps + number * _JUMP_BYTES
            self._write(fixup.place, target + fixup.addend)
        self.code += bytes(-len(self.code) % PAGE)
        named = [(slots + index * _SLOT_BYTES, name) for index, name in enumerate(functions)]
        return Image(np.frombuffer(bytes(self.code), np.uint8), dict(entries), named)

    def _room(self, nbytes: int) -> int:
        self.code += bytes(-len(self.code) % 16)
        first = len(self.code)
        self.code += bytes(nbytes)
        return first

    def _write(self, place: int, target: int) -> None:
        """Let the four bytes at a place hold the distance from there to a target."""
        try:
            struct.pack_into("<i", self.code, place, target - place)
        except struct.error as error:
            raise NotLinkableError(f"a distance does not fit its instruction: {error}") from error


def _symbol(name: str, home: int, value: int, bases: Mapping[int, int]) -> int | str:
    """Where a symbol lies in the image, or the name of a function of the process; '' for what nobody may refer to."""
    if home in bases:
        return bases[home] + value
    return name if home == _UNDEFINED else ""


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
