"""What each technique is worth: models with it and without it, side by side.

    python -m benchmarks.ablation [--zoo DIR] [--models …] [--threads 1] [--seconds S | --runs N] [--only NAME]
                                  [--switch "NAME: -Rewrite, key=value"] [--json FILE]

A technique is switched off by session config entries, by leaving rewrites out, or both. A fresh process for each model
holds a session with everything, which takes turns with one without a technique after the other; `effect` is the median
without over the median with it: 1.20 means that runs take a fifth longer without. `--switch` adds one to those
of the table in this file: entries are ``key=value``, rewrites have a minus before their name.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import isolated, machine, options, report
from benchmarks.engines import OURS, OnnxRuntime
from benchmarks.tables import Column, Table
from benchmarks.turns import Budget, difference, take_turns
from benchmarks.zoo import test_data


@dataclass(frozen=True)
class Switch:
    """How a technique is turned off."""

    name: str
    config: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()  # rewrites


SWITCHES = (
    Switch("native kernels", {"sardonyx.cpu.kernels": "numpy"}),
    Switch("instructions beyond AVX2", {"sardonyx.cpu.kernels": "avx2"}),
    Switch("seven products of quarters for eight", {"sardonyx.cpu.fast_products": "0"}),
    Switch("convolutions by Winograd's algorithm", {"sardonyx.cpu.winograd": "0"}),
    Switch("spinning threads", {"session.intra_op.allow_spinning": "0"}),
    Switch("fused attention", without=("AttentionFusion", "GroupedAttentionFusion", "HeadAttentionFusion")),
    Switch("queries, keys and values in one product", without=("QKVProjectionFusion",)),
    Switch("layer normalisation in one pass", without=("LayerNormFusionL2", "SkipLayerNormFusion")),
    Switch("residual added while normalising", without=("SkipLayerNormFusion",)),
    Switch("GELU as one operator", without=("GeluFusionL2", "FastGeluFusion", "QuickGeluFusion")),
)

MODELS = ("bert-base", "minilm-l6", "gpt2-decode", "vit-base", "whisper-small-decoder-step")

TABLE = Table(
    (
        Column("without", "switch", width=40),
        Column("model", "model", width=26),
        Column("thr", "threads", "d", 3),
        Column("with ms", "with_ms", ".3f", 9),
        Column("without ms", "without_ms", ".3f", 10),
        Column("effect", "effect", ".3f", 6),
        Column("of minima", "min_effect", ".3f", 9),
        Column("max rel", "max_rel", ".0e", 7),
    )
)


@dataclass
class Effect:
    """One technique on one model."""

    switch: str
    model: str
    threads: int
    error: str = ""
    with_ms: float = 0.0
    without_ms: float = 0.0
    effect: float = 0.0
    min_effect: float = 0.0
    max_rel: float = 0.0


def main() -> None:
    parser = options.parser("ablation", __doc__)
    options.add_models(parser)
    options.add_threads(parser, (1,))
    parser.add_argument("--seconds", type=float, default=2.0, help="timed seconds of each; default: %(default)s")
    parser.add_argument("--runs", type=int, default=0, help="at least so many timed runs, in place of --seconds")
    parser.add_argument("--switch", type=parsed, action="append", default=[], metavar="NAME:ENTRIES")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="switches to measure; default: all")
    options.add_json(parser)
    chosen = parser.parse_args()
    built = set(options.built_models(parser, chosen.models, chosen.zoo))
    models = chosen.models or [name for name in MODELS if name in built]
    switches = [one for one in (*SWITCHES, *chosen.switch) if not chosen.only or one.name in chosen.only]
    for switch in switches:
        for complaint in unknown(switch):
            parser.error(f"{switch.name}: {complaint}")
    print(machine.line())
    kept = report.Report(chosen.json)
    budget = Budget(chosen.seconds, chosen.runs)
    rows = measure_all(switches, models, chosen.threads, chosen.zoo, budget)
    kept.put("ablation", rows, {"seconds": chosen.seconds, "switches": [asdict(switch) for switch in switches]})


def parsed(text: str) -> Switch:
    """A switch from the command line."""
    name, colon, entries = text.partition(":")
    config, without = {}, []
    for entry in options.names(entries):
        key, equals, value = entry.partition("=")
        if entry.startswith("-") and len(entry) > 1:
            without.append(entry[1:])
        elif equals and key:
            config[key] = value
        else:
            raise argparse.ArgumentTypeError(f"{entry!r} is neither key=value nor a rewrite with a minus")
    if not colon or not (config or without):
        raise argparse.ArgumentTypeError(f"{text!r} switches nothing: NAME: key=value, -Rewrite is wanted")
    return Switch(name.strip(), config, tuple(without))


def unknown(switch: Switch) -> Iterator[str]:
    """What a session would ignore silently, because it does not know the name."""
    from sardonyx.api.options.config_keys import CONFIG_KEYS
    from sardonyx.passes.base import Level
    from sardonyx.passes.pipeline import passes_up_to

    rewrites = {one.name for one in passes_up_to(max(Level))}
    yield from (f"there is no rewrite {name}" for name in switch.without if name not in rewrites)
    yield from (f"there is no session config entry {name}" for name in switch.config if name not in CONFIG_KEYS)


def measure_all(
    switches: Sequence[Switch], models: Iterable[str], threads: Iterable[int], zoo: Path, budget: Budget
) -> Iterator[Effect]:
    """Rows of all techniques on all models, each printed when it is there."""
    print(f"\nTechniques\n\n{TABLE.head()}")
    for model in models:
        for count in threads:
            for row in measure_apart(switches, model, count, zoo, budget):
                print(TABLE.line(asdict(row)), flush=True)
                yield row


def measure_apart(switches: Sequence[Switch], model: str, threads: int, zoo: Path, budget: Budget) -> list[Effect]:
    """Techniques on one model, in a fresh process; each in one of its own if that fails."""
    try:
        return isolated.call(measure, switches, model, threads, zoo, budget)
    except Exception as error:  # a model that fails is a result, not the end of the benchmark
        if len(switches) == 1:
            return [Effect(switches[0].name, model, threads, error=isolated.reason(error))]
    return [row for switch in switches for row in measure_apart([switch], model, threads, zoo, budget)]


def measure(switches: Iterable[Switch], name: str, threads: int, zoo: Path, budget: Budget) -> list[Effect]:
    """Techniques on one model, in this process, which holds two sessions at a time."""
    inputs, _ = test_data.load(zoo / name / "test_data_set_0")
    path = zoo / name / "model.onnx"
    whole = OnnxRuntime(OURS).session(path, threads)
    rows = [Effect(switch.name, name, threads) for switch in switches]
    for row, switch in zip(rows, switches, strict=True):
        try:
            without = OnnxRuntime(OURS, switch.config, switch.without).session(path, threads)
            compare(
                row, {"with": partial(whole.run, None, inputs), "without": partial(without.run, None, inputs)}, budget
            )
        except Exception as error:  # a technique that cannot be switched off is a result, not the end of the benchmark
            row.error = isolated.reason(error)
    return rows


def compare(row: Effect, runners: Mapping[str, Callable[[], Sequence[np.ndarray]]], budget: Budget) -> None:
    """Put the figures of a model with and without a technique into its row."""
    outputs = {which: [np.array(value) for value in run()] for which, run in runners.items()}
    samples = take_turns(runners, budget)
    row.with_ms, row.without_ms = (statistics.median(samples[which]) * 1e3 for which in ("with", "without"))
    row.effect = row.without_ms / row.with_ms
    row.min_effect = min(samples["without"]) / min(samples["with"])
    _, row.max_rel = difference(outputs["without"], outputs["with"])


if __name__ == "__main__":
    main()
