"""What was measured of this machine, on disk beside the kernels: a file for each machine that uses the folder.

A file holds sections of numbers, each written by whoever measures it. It is trusted only if it is whole, belongs to
this machine and nobody else can have written it; anything else counts as absent and is measured anew.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from typing import Any

from sardonyx.runtime.files.cache_folder import default_folder, prepare_folder
from sardonyx.runtime.files.digest import sha256
from sardonyx.runtime.files.opening import PRIVATE, StrPath, open_private, replacing
from sardonyx.runtime.files.own_files import remove_own
from sardonyx.runtime.json_text import parsed

_FORMAT = 1
_LARGEST = 16 << 20

Section = Mapping[str, Any]


def machine_key(target: str) -> str:
    """What figures belong to: the kernels' target, the processor's name and how many of it there are."""
    return f"{target}|{_processor()}|{os.cpu_count() or 1} processors"


def _processor() -> str:
    """The name of the processor as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            text = file.read(4096)  # the first processor
    except OSError:
        return platform.processor() or platform.machine()
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    names = ("model name", "cpu family", "model")
    return " ".join(found[name] for name in names if name in found) or platform.machine()


def read_sections(key: str, folder: StrPath | None = None) -> dict[str, Section]:
    """The sections that are known of the machine `key`; none where there is no file that can be trusted."""
    path = _file(key, folder)
    if path is None:
        return {}
    try:
        with open_private(path) as file:
            content = parsed(file.read(_LARGEST))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict) or content.get("format") != _FORMAT or content.get("machine") != key:
        return {}
    sections = content.get("sections")
    if not isinstance(sections, dict) or content.get("digest") != _digest(sections):
        return {}
    return {name: section for name, section in sections.items() if isinstance(section, dict)}


def write_section(key: str, name: str, section: Section, folder: StrPath | None = None) -> str | None:
    """Keep a section beside the others of the machine `key`; the file, or None where it cannot be written."""
    path = _file(key, folder)
    if path is None:
        return None
    sections = {**read_sections(key, folder), name: section}
    text = json.dumps({"format": _FORMAT, "machine": key, "sections": sections, "digest": _digest(sections)}, indent=1)
    if prepare_folder(os.path.dirname(path)):
        return None
    try:
        with replacing(path, PRIVATE) as file:
            file.write(text.encode() + b"\n")
    except OSError:
        return None
    return path


def drop(key: str, folder: StrPath | None = None) -> str | None:
    """Forget everything of the machine `key`; the file that was removed, None where there was none."""
    path = _file(key, folder)
    return path if path is not None and remove_own(path) else None


def _file(key: str, folder: StrPath | None) -> str | None:
    """The machine's file; None where nothing is kept."""
    folder = folder or default_folder()
    return None if folder is None else os.path.join(folder, f"machine-{sha256(key.encode()).hexdigest()[:16]}.json")


def _digest(sections: Mapping[str, Any]) -> str:
    """A checksum of the sections as they are written."""
    return sha256(json.dumps(sections, sort_keys=True).encode()).hexdigest()
