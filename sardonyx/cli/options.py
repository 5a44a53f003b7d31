"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, or an engine.", show_default=False)]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=…", help="NAME=FILE.npy, NAME=random, NAME=zeros, NAME=ones or NAME=NUMBER (random)."
    ),
]
Dims = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=SIZE", help="Size of a symbolic dimension (1).")]
Threads = Annotated[int, typer.Option(min=0, metavar="N", help="Threads inside operators; 0 lets the engine choose.")]
Level = Annotated[
    str, typer.Option(metavar="NAME", help="Optimisation level: disable, basic, extended, layout or all.")
]
Entries = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A config entry of the session.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
