"""How much memory a session may take: the config key ``sardonyx.memory_limit``."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.runtime.memory.memory import MemoryLimit

KEY = "sardonyx.memory_limit"


def memory_limit(entries: Mapping[str, str]) -> MemoryLimit | None:
    """The limit that session config entries set; None without one, or with a bad one, which `config_keys` refuses."""
    text = entries.get(KEY, "")
    return MemoryLimit(int(text), KEY) if text.isdecimal() and int(text) > 0 else None
