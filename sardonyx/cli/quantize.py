"""`sardonyx quantize`: a smaller and faster model, with what that costs in accuracy."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx import errors
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.cli import quantize_chart
from sardonyx.cli.arguments import dimensions, session_options
from sardonyx.cli.assumptions import Assumptions
from sardonyx.cli.failure import CommandError, UsageError, note
from sardonyx.cli.model_inputs import make_inputs
from sardonyx.cli.models import read_model
from sardonyx.cli.options import Dims, Entries, Json, Threads
from sardonyx.cli.quantize_summary import Summary, show
from sardonyx.cli.shapes import infer
from sardonyx.quantization.calibration.readers import NpzFolderReader
from sardonyx.quantization.search.comparison import Feeds, layer_deviations, output_deviations
from sardonyx.quantization.search.evaluation import Evaluator, Metric
from sardonyx.quantization.search.recipe import PRESETS, Recipe, preset
from sardonyx.quantization.search.search import Result, Search, Target
from sardonyx.quantization.search.speed import medians
from sardonyx.quantization.search.work import work_of

EXAMPLES = (
    "sardonyx quantize bert.onnx --dynamic",
    "sardonyx quantize resnet.onnx --static --data samples/ -o resnet.int8.onnx --chart speed.html",
    "sardonyx quantize model.onnx --static --data samples.py --target-error 0.02 --state search.json",
)

_LAYER_SAMPLES = 4  # on which the errors of layers are measured: their values all lie in memory
_RANDOM_SAMPLES = 4
_CALIBRATIONS = ("MinMax", "Entropy", "Percentile")


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The quantised model; MODEL.int8.onnx if left out."),
    ] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Ranges of activations come from each run.")] = False,
    static: Annotated[bool, typer.Option("--static", help="Ranges of activations come from --data.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Samples: a folder of .npz files, or a Python file whose samples() gives dictionaries of arrays.",
        ),
    ] = None,
    test_data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Samples, as --data, on which errors are measured; --data if left out."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="The most samples that are taken.")] = 100,
    preset_name: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help=f"Types for a processor: {', '.join(PRESETS)}.")
    ] = None,
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="One scale for a weight, not one for each of its channels.")
    ] = False,
    calibration: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"How ranges are found: {', '.join(_CALIBRATIONS)} (MinMax)."),
    ] = None,
    operators: Annotated[
        list[str] | None, typer.Option("--op-type", metavar="NAME", help="Only operators of this type; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="A node that stays float; repeatable.")
    ] = None,
    target_error: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="NUMBER", help="Search until no output differs by more of its size, as 0.02."),
    ] = None,
    target_metric: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Search by a Python file whose metric(session) gives a number to maximise."),
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="What the metric must reach; 0.99 of the float model's if left out."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keeps what a search found, to go on from there later.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A picture of sizes, times and errors: .html or .png.")
    ] = None,
    dims: Dims = None,
    entries: Entries = None,
    threads: Threads = 0,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of random samples.")] = 0,
    as_json: Json = False,
) -> None:
    """Quantise a model; print what was quantised and what was not and why, sizes, errors and speed."""
    if dynamic == static:
        raise UsageError("expected one of --dynamic and --static")
    if target_error is not None and target_metric is not None:
        raise UsageError("expected one of --target-error and --target-metric, not both")
    if at_least is not None and target_metric is None:
        raise UsageError("--at-least is for --target-metric")
    if chart is not None:
        quantize_chart.check(chart)
    target = model.with_suffix(".int8.onnx") if output is None else output
    for path in (target, chart, state):
        if path is not None and not path.parent.is_dir():
            raise CommandError(f"{path} cannot be written: there is no folder {path.parent}")
    if os.path.abspath(target) == os.path.abspath(model):
        raise UsageError(f"--output {target}: it is the model itself")
    recipe = _recipe(static, preset_name, per_tensor, calibration, operators, exclude)
    options = session_options(threads, "all", entries or [])
    feeds = _samples(model, data, samples, dims or [], seed, static)
    tested = feeds if test_data is None else _samples(model, test_data, samples, dims or [], seed, static)
    metric = None if target_metric is None else _metric(target_metric)
    with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
        evaluator = Evaluator(model, tested, feeds, Path(folder), options, metric, state, note)
        result = _searched(evaluator, recipe, target_error, at_least)
        summary = _written(evaluator, result, target, options)
    if as_json:
        print(json.dumps(summary.content()))
    else:
        show(summary)
    if chart is not None:
        try:
            quantize_chart.write(chart, summary)
        except OSError as error:
            raise CommandError(f"{chart} cannot be written: {error.strerror or error}") from error
    if not result.is_reached:
        raise CommandError(f"no way of quantising this model reaches the target; {target} is the best that was found")


def _recipe(
    static: bool,
    name: str | None,
    per_tensor: bool,
    calibration: str | None,
    operators: list[str] | None,
    exclude: list[str] | None,
) -> Recipe:
    """What the options ask for."""
    if calibration is not None and not static:
        raise UsageError("--calibration is for --static")
    if calibration is not None and calibration not in _CALIBRATIONS:
        raise UsageError(f"--calibration {calibration}: expected one of {', '.join(_CALIBRATIONS)}")
    try:
        recipe = preset(name, static)
    except errors.InvalidArgument as error:
        raise UsageError(f"--preset {name}: {error.message}") from error
    changes: dict[str, Any] = {"kept_float": tuple(sorted(exclude or ()))}
    if per_tensor:
        changes["per_channel"] = False
    if calibration is not None:
        changes["calibration"] = calibration
    if operators:
        changes["operators"] = tuple(dict.fromkeys(operators))
    return recipe.with_changes(**changes)


def _samples(model: Path, data: Path | None, count: int, dims: list[str], seed: int, static: bool) -> list[Feeds]:
    """The samples that were given, or random ones, on which a dynamic model's errors can be measured."""
    if data is not None and data.suffix == ".py":
        given = _function(data, "samples")
        with _running(data):
            found = list(islice(given(), count))
    elif data is not None:
        found = list(NpzFolderReader(data, count))
    elif static:
        raise UsageError("--static needs samples: --data FOLDER of .npz files, or --data FILE.py with samples()")
    else:
        return _random(model, dims, seed)
    if not found:
        raise CommandError(f"{data} gives no sample")
    for one in found:
        if not isinstance(one, Mapping):
            raise CommandError(
                f"{data}: a sample is a dictionary of arrays by the names of inputs, not a {type(one).__name__}"
            )
    return found


def _random(model: Path, dims: list[str], seed: int) -> list[Feeds]:
    source = read_model(model).model
    sizes = dimensions(dims)
    inference = infer(source)
    feeds: list[Feeds] = [make_inputs(source, inference, {}, sizes, seed + number) for number in range(_RANDOM_SAMPLES)]
    assumed = Assumptions(source, {}, sizes, dict(feeds[0])).sizes
    listed = "".join(f", {name} = {size}" for name, size in assumed.items())
    note(f"errors are those on random inputs{listed}; --data gives real ones")
    return feeds


def _metric(path: Path) -> Metric:
    given = _function(path, "metric")

    def metric(session: InferenceSession) -> float:
        with _running(path):
            value: float = given(session)
        return value

    return metric


@contextlib.contextmanager
def _running(path: Path) -> Iterator[None]:
    """Tell of what a Python file of the user's raises, and in which of its lines."""
    try:
        yield
    except (Exception, SystemExit) as error:
        lines = [
            line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(path)
        ]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise CommandError(f"{where} failed: {type(error).__name__}: {error}") from error


def _function(path: Path, name: str) -> Callable[..., Any]:
    """A function that a Python file of the user's defines."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    with _running(path):
        found: Callable[..., Any] | None = runpy.run_path(str(path)).get(name)
    if not callable(found):
        raise UsageError(f"{path}: expected a function {name} in it")
    return found


def _searched(evaluator: Evaluator, recipe: Recipe, error: float | None, at_least: float | None) -> Result:
    """The recipe as it is where there is no target, else what the search finds."""
    metric: Metric | None = evaluator.metric
    if error is None and metric is None:
        return Result(recipe, evaluator.verdict(recipe), True)
    if metric is not None and at_least is None:
        own = evaluator.float_metric()
        at_least = own - 0.01 * abs(own)
        note(f"the metric of the float model is {own:.5g}, so the target is {at_least:.5g}")
    report = evaluator.report(recipe)
    names = [one.name for one in report.nodes.values() if one.is_quantized]
    costs = work_of(evaluator.model, evaluator.feeds[0], names)
    return Search(evaluator, Target(error, at_least), costs).run(recipe)


def _written(evaluator: Evaluator, result: Result, target: Path, options: SessionOptions) -> Summary:
    """The quantised model at its place, and all that is told of it."""
    model, feeds = evaluator.model, evaluator.feeds
    report = evaluator.apply(result.recipe, target)
    names = [one.name for one in report.nodes.values() if one.is_quantized]
    return Summary(
        model,
        target,
        result,
        report,
        outputs=output_deviations(target, feeds, evaluator.expected, options),
        layers=layer_deviations(evaluator.prepared(result.recipe), target, feeds[:_LAYER_SAMPLES], names, options),
        seconds=tuple(medians([model, target], feeds[0], options)),
        evaluations=evaluator.count,
    )
