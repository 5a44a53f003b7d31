"""The machine that figures come from: what `lscpu` says of it, its load, and the versions of what is compared."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

# Features that decide which instructions the engines use.
_TELLING = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
            "amx_int8", "asimd", "asimddp", "i8mm", "bf16", "sve")  # fmt: skip


def facts() -> dict[str, object]:
    """What a reader needs to judge figures; the fields of `lscpu` where there is one."""
    cpu = _lscpu()
    flags = set(str(cpu.pop("Flags", "")).split())
    return {
        "cpu": cpu.get("Model name", platform.processor() or platform.machine()),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "features": [name for name in _TELLING if name in flags],
        "lscpu": {name: value for name, value in cpu.items() if not name.startswith("Vulnerability")},
        "system": platform.platform(),
        "python": platform.python_version(),
        "moment": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": round(os.getloadavg()[0], 2),
    }


def line(found: dict[str, object] | None = None) -> str:
    """The machine in one line, for the head of a table."""
    found = found or facts()
    cpu = found["lscpu"]
    assert isinstance(cpu, dict)
    family = f" (family {cpu['CPU family']}, model {cpu['Model']})" if "Model" in cpu else ""
    caches = ", ".join(f"{level} {cpu[level + ' cache']}" for level in ("L1d", "L2", "L3") if f"{level} cache" in cpu)
    features = " ".join(map(str, found["features"] if isinstance(found["features"], list) else []))
    return (
        f"{found['cpu']}{family}, {found['cores']} cores, {caches}, {found['memory_gib']} GiB; {features}; "
        f"load {found['load']}"
    )


def _lscpu() -> dict[str, object]:
    tool = shutil.which("lscpu")
    if tool is None:
        return {}
    done = subprocess.run(
        [tool, "--json"], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    )
    found: dict[str, object] = {}

    def collect(entries: list[dict]) -> None:
        for entry in entries:
            if entry.get("data") is not None:
                found[entry["field"].rstrip(":")] = entry["data"]
            collect(entry.get("children", []))

    collect(json.loads(done.stdout)["lscpu"])
    return found


def memory_bytes() -> int:
    """Bytes of memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def resident_mb(which: str) -> float:
    """``VmRSS``, what this process holds in memory, or ``VmHWM``, the most since `reset_peak`; Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(entry.split()[1]) / 1024 for entry in lines if entry.startswith(which))


def reset_peak() -> None:
    """Let the peak of `resident_mb` count from here."""
    Path("/proc/self/clear_refs").write_text("5")
