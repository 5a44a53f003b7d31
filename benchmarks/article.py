"""Four forms of one encoder: float32, float16, dynamic int8 and static int8, side by side.

    python -m benchmarks.article [--threads 1,2] [--json FILE]

The model is MiniLM with its real weights, the data are the sentences of `benchmarks.accuracy`. `cosine` is the mean
cosine to the vectors of the float32 model, `ms` the median time of a run of eight sentences, all forms in turns, `MB`
the size on disk, `memory MB` what a fresh process holds at most above an idle one while it runs the form. The static
form is that which the documentation recommends for transformers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

import sardonyx
from benchmarks import isolated, machine, options, report
from benchmarks.accuracy.embeddings import TASK
from benchmarks.accuracy.methods import Method
from benchmarks.accuracy.task import Array, Feeds, default_folder
from benchmarks.tables import Column, Table
from sardonyx.quantization.search.recipe import PRODUCTS
from sardonyx.quantization.search.speed import medians
from sardonyx.transformers.half_conversion import convert_float_to_float16

TABLE = Table(
    (
        Column("form", "form", width=14),
        Column("thr", "threads", "d", 3),
        Column("ms", "ms", ".2f", 8),
        Column("speed-up", "ratio", ".2f", 8),
        Column("MB", "mb", ".1f", 7),
        Column("memory MB", "memory_mb", ".1f", 9),
        Column("cosine", "cosine", ".4f", 7),
    )
)
# What the documentation recommends for transformers in static quantisation.
_STATIC: Mapping[str, Any] = {
    "op_types_to_quantize": list(PRODUCTS),
    "extra_options": {
        "OpTypesToExcludeOutputQuantization": list(PRODUCTS),
        "MatMulConstBOnly": True,
        "SmoothQuant": True,
        "SmoothQuantAlpha": 0.65,
    },
}


def main() -> None:
    parser = options.parser("article", __doc__)
    options.add_threads(parser, options.default_threads())
    options.add_json(parser)
    chosen = parser.parse_args()
    print(f"{machine.line()}\n\n{TABLE.head()}")
    report.Report(chosen.json).put("article", measure_all(chosen.threads))


def measure_all(threads: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Rows of all forms, each printed when it is there."""
    data = TASK.data()
    with tempfile.TemporaryDirectory() as folder:
        forms = write(Path(folder), data.calibration)
        reference = _answers(forms["float32"], data.test)
        cosines = {name: TASK.judge(_answers(path, data.test), reference, None) for name, path in forms.items()}
        for count in threads:
            session_options = sardonyx.SessionOptions()
            session_options.intra_op_num_threads = count
            times = medians(list(forms.values()), data.test[0], session_options)
            for (name, path), seconds in zip(forms.items(), times, strict=True):
                row = {
                    "form": name,
                    "threads": count,
                    "ms": 1e3 * seconds,
                    "ratio": times[0] / seconds,
                    "mb": path.stat().st_size / 1e6,
                    "memory_mb": isolated.call(memory, str(path), count, dict(data.test[0])),
                    "cosine": cosines[name],
                }
                print(TABLE.line(row), flush=True)
                yield row


def write(folder: Path, calibration: Sequence[Feeds]) -> dict[str, Path]:
    """The files of all forms, by name."""
    model = TASK.model(default_folder())
    forms = {"float32": model, **{name: folder / f"{name}.onnx" for name in ("float16", "dynamic int8", "static int8")}}
    onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), forms["float16"])
    Method("dynamic", True).apply("sardonyx", model, forms["dynamic int8"], calibration)
    Method("static", True, "MinMax", dict(_STATIC)).apply("sardonyx", model, forms["static int8"], calibration)
    return forms


def memory(path: str, threads: int, feeds: Feeds) -> float:
    """MB that this process holds at most above what it did, while it makes and runs a session."""
    session_options = sardonyx.SessionOptions()
    session_options.intra_op_num_threads = threads
    before = machine.resident_mb("VmRSS")
    machine.reset_peak()
    sardonyx.InferenceSession(path, session_options).run(None, dict(feeds))
    return machine.resident_mb("VmHWM") - before


def _answers(model: Path, feeds: Sequence[Feeds]) -> list[Array]:
    session = sardonyx.InferenceSession(str(model))
    return [session.run(None, dict(one))[0] for one in feeds]


if __name__ == "__main__":
    main()
