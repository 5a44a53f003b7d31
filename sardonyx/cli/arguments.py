"""Options of the form NAME=VALUE that several commands take."""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.api.enums import GraphOptimizationLevel
from sardonyx.api.options import config_keys
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.cli.failure import UsageError

# Keys that providers of other packages may read.
_FOREIGN = "ep."
_LARGEST = 2**63 - 1


def assignments(option: str, texts: Iterable[str]) -> dict[str, str]:
    """`["a=1", "b=x"]` as a mapping; UsageError for a text without a name, or a name that comes twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise UsageError(f"{option} {text}: expected NAME=VALUE")
        if name in found:
            raise UsageError(f"{option}: {name} is given twice")
        found[name] = value
    return found


def dimensions(texts: Iterable[str]) -> dict[str, int]:
    """Sizes of symbolic dimensions; UsageError for one that is not a whole number from 0 on."""
    return {name: whole_number(f"--dim {name}", value) for name, value in assignments("--dim", texts).items()}


def whole_number(option: str, text: str) -> int:
    """A number from 0 on; UsageError for anything else."""
    if not text.isdecimal():
        raise UsageError(f"{option}={text}: expected a whole number, 0 or more")
    if len(text) > len(str(_LARGEST)) or int(text) > _LARGEST:
        raise UsageError(f"{option}: expected a whole number up to {_LARGEST}, not one of {len(text)} digits")
    return int(text)


def session_options(threads: int, level: str, entries: Iterable[str]) -> SessionOptions:
    """The options of a session; UsageError for a level that is none, a config key that nothing reads, a wrong value."""
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = _level(level)
    for key, value in assignments("--option", entries).items():
        if key in config_keys.CONFIG_KEYS:
            if wish := config_keys.expected(key, value):
                raise UsageError(f"--option {key}={value}: expected {wish}")
        elif (slip := config_keys.slip(key)) or not key.startswith(_FOREIGN):
            raise UsageError(f"--option {key}: {slip or 'there is no such session config key'}")
        options.add_session_config_entry(key, value)
    return options


def _level(name: str) -> GraphOptimizationLevel:
    """An optimisation level by its name."""
    levels = {level.name.removeprefix("ORT_ENABLE_").lower(): level for level in GraphOptimizationLevel}
    levels["disable"] = levels.pop("ort_disable_all")
    if name not in levels:
        raise UsageError(
            f"--level {name}: expected one of {', '.join(sorted(levels, key=lambda one: int(levels[one])))}"
        )
    return levels[name]
