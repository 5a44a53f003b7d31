"""The file that figures are kept in: JSON, one entry for each part, each with the state of the machine at the time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from benchmarks import isolated, machine
from benchmarks.engines import ENGINES, UnsupportedError
from benchmarks.floors import Floors
from benchmarks.floors import measure as measure_floors


class Report:
    """Figures of one machine. What was measured on another processor is not kept beside them."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        here = machine.facts()
        found = json.loads(path.read_text()) if path is not None and path.exists() else {}
        same = found.get("machine", {}).get("lscpu") == here["lscpu"]
        if found and not same:
            print(f"{path} was measured on another machine: it is written anew")
        self.data: dict[str, Any] = found if same else {}
        self.data["machine"] = here

    def put(self, part: str, rows: Iterable[Any], settings: Mapping[str, Any] | None = None) -> None:
        """Keep the rows of a part (dataclasses or mappings), and write the file after each."""
        state = {name: value for name, value in machine.facts().items() if name in ("load", "moment")}
        kept: list[dict[str, Any]] = []
        self.data[part] = {**state, "settings": dict(settings or {}), "rows": kept}
        for row in rows:
            kept.append(asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row))
            self.save()

    def rows(self, part: str) -> list[dict[str, Any]]:
        return self.data.get(part, {}).get("rows", [])

    @property
    def floors(self) -> Floors | None:
        return Floors.from_json(self.data["floors"]) if "floors" in self.data else None

    @floors.setter
    def floors(self, floors: Floors) -> None:
        self.data["floors"] = asdict(floors)
        self.save()

    def save(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        partial.write_text(json.dumps(self.data, indent=1, default=str) + "\n")
        partial.replace(self.path)


def ceilings(kept: Report, threads: Iterable[int]) -> Floors:
    """The machine's ceilings, measured now and kept: its clock changes from one hour to the next."""
    kept.floors = found = isolated.call(measure_floors, tuple(threads))
    return found


def versions(engines: Iterable[str]) -> dict[str, str]:
    """The version of every engine that can be used; a line tells why of each of the others."""
    found = {}
    for engine in engines:
        try:
            found[engine] = isolated.call(version, engine)
        except (isolated.DiedError, UnsupportedError) as error:
            print(f"{engine} is left out: {error}")
    return found


def version(engine: str) -> str:
    """The version of an engine, imported in this process; UnsupportedError where it cannot be used."""
    return ENGINES[engine].warm_import()
