"""`sardonyx convert`: a PyTorch model of transformers to ONNX files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli.console import console, number_table, say
from sardonyx.cli.failure import CommandError, UsageError, note
from sardonyx.cli.options import Json
from sardonyx.models.export import DTYPES, TASKS, Exported, export_model

EXAMPLES = (
    "sardonyx convert ./my-finetuned-bert",
    "sardonyx convert ./Qwen3-0.6B --to qwen3-onnx --dtype float16",
    "sardonyx convert ./checkpoint --task feature-extraction",
)


def convert(
    model: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="A folder with config.json and weights, or a model's id on the hub.", show_default=False
        ),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="OUT", help="The folder to write; DIR-onnx if left out.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"What the model is for, as config.json says if left out: {', '.join(TASKS)}."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Type of the weights: {', '.join(DTYPES)}; float32 if left out."),
    ] = None,
    opset: Annotated[
        int | None, typer.Option(metavar="N", help="The ONNX opset; 23 if left out: attention as one operator.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Run the files on other sizes and compare them with PyTorch.")
    ] = True,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="NUMBER", help="The largest difference, as a part of the largest number."),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run the Python code of a model's own, which the folder brings.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the ONNX files of a model, its config and its tokenizer or processor into a folder."""
    target = Path(f"{model.rstrip('/').split('/')[-1]}-onnx") if to is None else to
    if to is None and Path(model).is_dir():
        target = Path(model).resolve().with_name(f"{Path(model).resolve().name}-onnx")
    if target.exists() and not target.is_dir():
        raise CommandError(f"{target} cannot be written: it is a file")
    if target.is_dir() and Path(model).is_dir() and target.samefile(model):
        raise UsageError(f"--to {target}: it is the folder of the model itself")
    hub = {"trust_remote_code": True} if trust_remote_code else {}
    progress = note if sys.stderr.isatty() else None
    done = export_model(
        model, target, task, dtype=dtype, opset=opset, check=check, tolerance=tolerance, progress=progress, **hub
    )
    if as_json:
        print(json.dumps(_content(done)))
    else:
        _show(done)


def _content(done: Exported) -> dict[str, Any]:
    return {
        "folder": str(done.folder),
        "task": done.task,
        "model_type": done.model_type,
        "dtype": done.dtype,
        "opset": done.opset,
        "files": {path.relative_to(done.folder).as_posix(): path.stat().st_size for path in done.files},
        "differences": done.differences,
    }


def _show(done: Exported) -> None:
    out = console()
    say(out, f"{done.folder}: {done.model_type} for {done.task}, {done.dtype}, opset {done.opset}")
    table = number_table("file", "MB", "difference")
    for path in done.files:
        name = path.relative_to(done.folder).as_posix()
        difference = done.differences.get(name)
        shown = "" if difference is None else f"{difference:.1e}"
        table.add_row(name, f"{path.stat().st_size / 1e6:,.2f}", shown)
    out.print(table)
    if done.differences:
        say(out, "difference  from PyTorch on sizes that were not traced, as a part of an output's largest number")
