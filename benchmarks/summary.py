"""A report as tables for people, one line for each model: what stands in docs/performance.md.

python -m benchmarks.summary FILE.json [PART …]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import (
    ablation,
    compare,
    gemm_shapes,
    knobs,
    lengths,
    machine,
    memory,
    options,
    packages,
    small,
    spread,
    startup,
    top1,
)
from benchmarks.engines import BASELINE, OURS
from benchmarks.tables import Column, Table

Data = Mapping[str, Any]

PEERS = ("openvino", "torch", "torch-compile")
BF16_PEER, BF16_OURS = "openvino-bf16", "sardonyx-bf16"


def main() -> None:
    parser = options.parser("summary", __doc__)
    parser.add_argument("report", type=Path, metavar="FILE.json")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(PARTS)}")
    chosen = parser.parse_args()
    for name in chosen.parts:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; there are {', '.join(PARTS)}")
    print(render(json.loads(chosen.report.read_text()), chosen.parts))


def render(data: Data, parts: Iterable[str] = ()) -> str:
    """The tables of the parts that a report has."""
    texts = [f"{machine.line(data['machine'])}, {data['machine']['moment']}"]
    for name in parts or PARTS:
        if name in data:
            title, table = PARTS[name]
            texts.append(f"### {title}\n\n{table(data)}")
    return "\n\n".join(texts)


def rows_of(data: Data, part: str) -> list[dict[str, Any]]:
    return list(data[part]["rows"])


# Models


def models(data: Data) -> str:
    """One line for each model and number of threads, and the means."""
    rows = rows_of(data, "models")
    by_key = {(row["model"], row["threads"], row["engine"]): row for row in rows if not row["error"]}
    peers = [engine for engine in PEERS if any(row["engine"] == engine for row in rows)]
    table = Table(
        (
            Column("model", "model", width=26),
            Column("thr", "threads", "d", 3),
            Column(f"{BASELINE} ms", "baseline_ms", ".2f", 14),
            Column("ours ms", "ours_ms", ".2f", 8),
            Column("**speed-up**", "ratio", ".2f", 12),
            *(Column(engine, engine, ".2f", 8) for engine in peers),
            Column("ours to the best", "best", ".2f", 16),
            Column("GFLOP/s", "gflops", ".0f", 7),
            Column("of the FMA peak", "fma_share", ".0%", 15),
            Column("GB/s", "gbytes", ".1f", 6),
            Column("of the bandwidth", "read_share", ".0%", 16),
        )
    )
    lines = []
    for model, threads in dict.fromkeys((row["model"], row["threads"]) for row in rows):
        found = {engine: by_key.get((model, threads, engine), {}) for engine in (BASELINE, OURS, *peers)}
        ours = found[OURS]
        lines.append(
            {
                "model": model,
                "threads": threads,
                "baseline_ms": found[BASELINE].get("median_ms"),
                "ours_ms": ours.get("median_ms"),
                "best": ours.get("best_ratio"),
                **{name: ours.get(name) for name in ("ratio", "gflops", "fma_share", "gbytes", "read_share")},
                **{engine: found[engine].get("ratio") for engine in peers},
            }
        )
    return f"{table.text(lines)}\n{compare.means(rows)}{bf16(by_key)}"


def bf16(by_key: Mapping[tuple[str, int, str], Data]) -> str:
    """Both engines that compute in bfloat16, where both ran."""
    table = Table(
        (
            Column("bfloat16: model", "model", width=26),
            Column("thr", "threads", "d", 3),
            Column("OpenVINO ms", "peer_ms", ".2f", 11),
            Column("ours ms", "ours_ms", ".2f", 8),
            Column("speed-up", "ratio", ".2f", 8),
        )
    )
    lines = []
    for (model, threads, engine), ours in by_key.items():
        peer = by_key.get((model, threads, BF16_PEER))
        if engine == BF16_OURS and peer:
            pair = {"peer_ms": peer["median_ms"], "ours_ms": ours["median_ms"]}
            lines.append({"model": model, "threads": threads, **pair, "ratio": pair["peer_ms"] / pair["ours_ms"]})
    return f"\n\n{table.text(lines)}" if lines else ""


def floors(data: Data) -> str:
    """The measured ceilings."""
    found = data["floors"]
    arithmetic = list(dict.fromkeys(name for row in found["compute"].values() for name in row))
    places = list(dict.fromkeys(name for row in found["read"].values() for name in row))
    table = Table(
        (
            Column("threads", "threads", "d", 7),
            *(Column(f"{name} Gop/s", name, ".0f", 10) for name in arithmetic),
            *(Column(f"{name} GB/s", name, ".1f", 9) for name in places),
        )
    )
    lines = [{"threads": int(count), **row, **found["read"][count]} for count, row in found["compute"].items()]
    return table.text(lines)


def _plain(part: str, table: Table) -> Callable[[Data], str]:
    """The table that the part's own command prints."""
    return lambda data: table.text(rows_of(data, part))


PARTS: Mapping[str, tuple[str, Callable[[Data], str]]] = {
    "floors": ("Ceilings of the machine", floors),
    "models": ("Models", models),
    "packages": ("Models with real weights", _plain("packages", packages.TABLE)),
    "sessions": ("Making a session", _plain("sessions", startup.SESSIONS)),
    "processes": ("Whole processes", _plain("processes", startup.PROCESSES)),
    "memory": ("Memory", _plain("memory", memory.TABLE)),
    "small": ("Small calls", _plain("small", small.TABLE)),
    "lengths": ("New sequence lengths", _plain("lengths", lengths.TABLE)),
    "spread": ("Spread of runs", _plain("spread", spread.TABLE)),
    "gemm": ("Matrix products by a weight", lambda data: gemm_shapes.summary(rows_of(data, "gemm"))),
    "gemm_variable": (
        "Matrix products of two inputs",
        lambda data: gemm_shapes.summary(rows_of(data, "gemm_variable")),
    ),
    "ablation": ("Techniques", _plain("ablation", ablation.TABLE)),
    "knobs": ("Knobs", _plain("knobs", knobs.TABLE)),
    "top1": ("First classes", _plain("top1", top1.TABLE)),
}


if __name__ == "__main__":
    main()
