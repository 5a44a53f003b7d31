"""Whether an engine decides as another one does: the first class of many random images, and the largest error.

    python -m benchmarks.top1 [--zoo DIR] [--models …] [--count 200] [--threads 2]
                              [--reference onnxruntime] [--engine sardonyx] [--json FILE]

Both engines run seeded random inputs in turn. Classifiers decide once for an image; YOLOv5s once for each anchor and
U-Net once for each pixel, each between the classes there. `equal` counts the decisions for the same class. Where they
differ, the gap is by how much the reference prefers its own class to the engine's, relative to the largest score of
the image: a `tie` is a gap that rounding bridges (up to 2e-5), `beyond` counts the others. `closest` is the smallest
gap between the two best classes of the reference in any decision, `classes` how many classes it chose at all: a model
that always answers the same proves little. `max rel` is the largest difference of outputs over the largest magnitude.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import isolated, machine, options, report
from benchmarks.engines import BASELINE, ENGINES, OURS
from benchmarks.tables import Column, Table
from benchmarks.turns import difference
from benchmarks.zoo import inputs, registry

COUNT = 200
ROUNDING = 2e-5  # relative to the largest score: what float32 engines differ by (benchmarks/README.md, "Answers")
DETAILS = 10  # decisions that are told one by one

TABLE = Table(
    (
        Column("model", "model", width=16),
        Column("reference", "reference", width=11),
        Column("engine", "engine", width=11),
        Column("thr", "threads", "d", 3),
        Column("inputs", "inputs", "d", 6),
        Column("decisions", "decisions", "d", 9),
        Column("classes", "classes", "d", 7),
        Column("equal", "equal", "d", 9),
        Column("ties", "ties", "d", 6),
        Column("beyond", "beyond", "d", 6),
        Column("closest", "closest", ".0e", 7),
        Column("max rel", "max_rel", ".1e", 7),
    )
)


@dataclass(frozen=True)
class Scores:
    """Where a model's first output holds the scores of classes: along `axis`, from index `first` on."""

    axis: int = -1
    first: int = 0

    def of(self, output: np.ndarray) -> np.ndarray:
        """The scores as (decisions, classes)."""
        scores = np.moveaxis(output, self.axis, -1)[..., self.first :]
        return scores.reshape(-1, scores.shape[-1])


MODELS = {
    "resnet50": Scores(),
    "resnet50-dynamo": Scores(),
    "mobilenetv2": Scores(),
    "mobilenetv2-nhwc": Scores(),
    "efficientnet-b0": Scores(),
    "efficientnet-b4": Scores(),
    "convnext-tiny": Scores(),
    "swin-tiny": Scores(),
    "vit-base": Scores(),
    "yolov5s": Scores(first=5),  # behind a box and its confidence
    "unet": Scores(axis=1),
}


@dataclass
class Agreement:
    """The decisions of an engine on one model beside those of the reference."""

    model: str
    reference: str
    engine: str
    threads: int
    error: str = ""
    inputs: int = 0
    decisions: int = 0
    classes: int = 0
    equal: int = 0
    ties: int = 0
    beyond: int = 0
    closest: float = 2.0  # no gap is larger: one score the largest magnitude, the next its negative
    max_rel: float = 0.0
    details: list[str] = field(default_factory=list)


def main() -> None:
    parser = options.parser("top1", __doc__)
    options.add_models(parser)
    parser.add_argument("--count", type=int, default=COUNT, help="random inputs; default: %(default)s")
    parser.add_argument("--reference", choices=tuple(ENGINES), default=BASELINE, help="default: %(default)s")
    parser.add_argument("--engine", choices=tuple(ENGINES), default=OURS, help="default: %(default)s")
    options.add_threads(parser, options.default_threads()[-1:])
    options.add_json(parser)
    chosen = parser.parse_args()
    for name in chosen.models:
        if name not in MODELS:
            parser.error(f"{name} is not known to decide between classes; these are: {', '.join(MODELS)}")
    models = [name for name in options.built_models(parser, chosen.models, chosen.zoo) if name in MODELS]
    print(machine.line())
    rows = measure_all(models, chosen.reference, chosen.engine, chosen.threads, chosen.zoo, chosen.count)
    report.Report(chosen.json).put("top1", rows, {"count": chosen.count})


def measure_all(
    models: Iterable[str], reference: str, engine: str, threads: Iterable[int], zoo: Path, count: int = COUNT
) -> Iterator[Agreement]:
    """Rows of all models, each printed when it is there, with its first differences."""
    print(f"\nFirst classes\n\n{TABLE.head()}")
    for name in models:
        for thread_pool in threads:
            try:
                row = isolated.call(measure, name, reference, engine, thread_pool, zoo, count)
            except isolated.DiedError as error:
                row = Agreement(name, reference, engine, thread_pool, error=str(error))
            print("\n".join([TABLE.line(asdict(row)), *(f"    {detail}" for detail in row.details)]), flush=True)
            yield row


def measure(name: str, reference: str, engine: str, threads: int, zoo: Path, count: int) -> Agreement:
    """Both engines on `count` inputs of one model, in this process."""
    model, scores = registry.get(name), MODELS[name]
    row = Agreement(name, reference, engine, threads)
    chosen: set[int] = set()
    try:
        for each in (reference, engine):
            ENGINES[each].warm_import()
        right, ours = (
            ENGINES[each].load(model, zoo / name / "model.onnx", threads, False) for each in (reference, engine)
        )
        for seed in range(count):
            feeds = inputs.make_inputs(model, seed=seed)
            wanted, found = right(feeds), ours(feeds)
            row.max_rel = max(row.max_rel, difference(found, wanted)[1])
            chosen |= set(add(row, scores.of(found[0]), scores.of(wanted[0])))
    except Exception as error:  # an engine that fails on a model is a result, not the end of the benchmark
        row.error = isolated.reason(error)
    row.classes = len(chosen)
    return row


def add(row: Agreement, found: np.ndarray, wanted: np.ndarray) -> list[int]:
    """Count the decisions of one input, scores (decisions, classes); the classes that the reference chose."""
    if found.shape != wanted.shape:
        raise ValueError(f"scores {found.shape} of {row.engine} cannot be compared with {wanted.shape}")
    largest = float(np.abs(wanted).max()) or 1.0
    ours, right = found.argmax(1), wanted.argmax(1)
    second, best = np.partition(wanted, -2, axis=1)[:, -2:].T
    differ = np.flatnonzero(ours != right)
    gaps = (best[differ] - wanted[differ, ours[differ]]) / largest
    ties = gaps <= ROUNDING
    for place, gap, tie in zip(differ[: DETAILS - len(row.details)], gaps, ties, strict=False):
        kind = "a tie within rounding" if tie else "beyond rounding"
        row.details.append(
            f"input {row.inputs}, decision {place}: class {ours[place]} in place of {right[place]}, "
            f"gap {gap:.1e}, {kind}"
        )
    row.inputs += 1
    row.decisions += len(right)
    row.equal += len(right) - len(differ)
    row.ties += int(ties.sum())
    row.beyond += int((~ties).sum())
    row.closest = min(row.closest, float((best - second).min()) / largest)
    return np.unique(right).tolist()


if __name__ == "__main__":
    main()
