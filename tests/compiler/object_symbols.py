"""What object files ask of the program that loads them."""

from __future__ import annotations

import struct


def undefined_functions(code: bytes) -> set[str]:
    """The names of the functions that an object file (ELF of 64 bits, or WebAssembly) calls and does not have."""
    return _of_wasm(code) if code[:4] == b"\0asm" else _of_elf(code)


def _of_elf(code: bytes) -> set[str]:
    """The symbols without a section, in every symbol table; the first entry of one means nothing."""
    assert code[:5] == b"\x7fELF\x02", "the object file is not ELF of 64 bits"
    (table,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + index * size) for index in range(count)]
    names = set()
    for _, kind, _, _, start, nbytes, link, _, _, entry in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[link][4]
        for place in range(start + entry, start + nbytes, entry):
            name, _, _, section = struct.unpack_from("<IBBH", code, place)
            if section == 0:
                names.add(code[strings + name : code.index(b"\0", strings + name)].decode())
    return names


def _of_wasm(code: bytes) -> set[str]:
    """The functions of the import section."""
    place, names = 8, set()
    while place < len(code):
        section = code[place]
        nbytes, place = _number(code, place + 1)
        end = place + nbytes
        if section == 2:
            count, place = _number(code, place)
            for _ in range(count):
                _, place = _text(code, place)
                name, place = _text(code, place)
                kind, place = code[place], place + 1
                if kind == 0:
                    names.add(name)
                    _, place = _number(code, place)
                else:
                    place = _behind(code, place, kind)
        place = end
    return names


def _behind(code: bytes, place: int, kind: int) -> int:
    """Where the description of an imported table, memory or global ends."""
    if kind == 3:  # a global: its type, and whether it changes
        return place + 2
    place += kind == 1  # a table: the type of its elements
    limits, place = code[place], place + 1
    for _ in range(1 + (limits & 1)):
        _, place = _number(code, place)
    return place


def _text(code: bytes, place: int) -> tuple[str, int]:
    length, place = _number(code, place)
    return code[place : place + length].decode(), place + length


def _number(code: bytes, place: int) -> tuple[int, int]:
    """A number in LEB128, and where it ends."""
    found = shift = 0
    while True:
        byte, place = code[place], place + 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return found, place
