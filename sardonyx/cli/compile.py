"""`sardonyx compile`: a model to an engine, from which sessions begin at once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from sardonyx import errors
from sardonyx.api.engines import shape_profiles
from sardonyx.api.engines.compiled_engine import TRUST
from sardonyx.api.engines.engine_compiler import MOST_SIZES, SECONDS, Summary, compile_engine
from sardonyx.cli.arguments import dimensions, session_options
from sardonyx.cli.assumptions import sizes_not_given
from sardonyx.cli.console import console, say
from sardonyx.cli.failure import UsageError, note
from sardonyx.cli.model_inputs import open_dimensions, required_inputs
from sardonyx.cli.models import read_model
from sardonyx.cli.options import Dims, Entries, Json, Threads
from sardonyx.runtime.files.kept import why_nothing_is_kept

# Between two lines on how far it is.
_SECONDS = 5.0

EXAMPLES = (
    "sardonyx compile model.onnx -o model.engine --dim batch=1 --dim seq=128",
    "sardonyx compile model.onnx --profile 'ids:1x8,1x128,1x512'",
)


def compile_(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The engine; MODEL.engine if left out.")
    ] = None,
    profiles: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            metavar="SHAPES",
            help="NAME:MIN,OPT,MAX;… as in ids:1x8,1x128,1x512; once for each profile, instead of --dim.",
        ),
    ] = None,
    dims: Dims = None,
    entries: Entries = None,
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Write the engine of a model; `--option` and `--threads` are those of its sessions."""
    if profiles and dims:
        raise UsageError("--dim is for engines of one shape: leave it out, or --profile")
    options = session_options(threads, "all", entries or [])
    target = model.with_suffix(".engine") if output is None else output
    read = [_profile(text) for text in profiles] if profiles else None
    assumed = {} if read else _not_given(model, dims or [])
    summary = compile_engine(str(model), target, options, read, dimensions(dims or []), _Progress())
    if why := why_nothing_is_kept():
        note(f"{why}. So sessions compile the model in the engine, unless {TRUST} = 1 answers for it")
    if as_json:
        print(json.dumps({**_report(model, summary), "assumed": assumed}))
    else:
        _show(summary, assumed)


class _Progress:
    """A line now and then while plans are made for many sizes."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _SECONDS

    def __call__(self, done: int, whole: int) -> bool:
        if whole and time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS
            note(f"plans for {done} of {whole} sizes so far ({MOST_SIZES} and {SECONDS} bound them)")
        return True


def _profile(text: str) -> shape_profiles.Profile:
    """A profile; UsageError for what is none."""
    try:
        return shape_profiles.parse(text)
    except errors.OnnxRuntimeError as error:
        raise UsageError(f"--profile: {error.message}") from error


def _not_given(model: Path, dims: list[str]) -> dict[str, int]:
    """The sizes of symbolic dimensions that nobody gave."""
    sizes = dimensions(dims)
    return {name: 1 for name in open_dimensions(required_inputs(read_model(model).model)) if name not in sizes}


def _report(model: Path, summary: Summary) -> dict[str, object]:
    return {
        "model": str(model),
        "engine": str(summary.path),
        "bytes": summary.nbytes,
        "sections": dict(summary.sections),
        "profiles": [profile.content() for profile in summary.profiles],
        "coverage": [one.content() for one in summary.coverage],
        "kernels": summary.kernels,
        "machine": summary.content["machine"],
        "version": summary.content["version"],
        "source": summary.content["source"],
    }


def _show(summary: Summary, assumed: dict[str, int]) -> None:
    out = console()
    machine = summary.content["machine"].split("|")[0]
    say(out, f"{summary.path}: {summary.nbytes / 1e6:,.1f} MB, {summary.kernels} kernels for {machine}")
    parts = ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in summary.sections.items())
    say(out, f"sections  {parts}")
    for profile, coverage in zip(summary.profiles, summary.coverage, strict=True):
        shapes = [
            f"{name} {', '.join('x'.join(map(str, shape)) or 'scalar' for shape in dict.fromkeys(three))}"
            for name, three in profile.shapes.items()
        ]
        say(out, f"profile   {'; '.join(shapes)}")
        say(out, f"plans     {coverage}")
    if assumed:
        say(out, f"sizes     {sizes_not_given(assumed)}")
