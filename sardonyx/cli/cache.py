"""`sardonyx cache`: what is kept between processes, where, and how it goes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli.arguments import whole_number
from sardonyx.cli.console import console, number_table, say
from sardonyx.cli.failure import UsageError
from sardonyx.cli.options import Json
from sardonyx.compiler.llvm.installed_packs import installed_pack
from sardonyx.compiler.llvm.library import why_not_ready
from sardonyx.compiler.llvm.target import host_target
from sardonyx.runtime.files.cache_folder import default_folder
from sardonyx.runtime.files.kept import why_nothing_is_kept
from sardonyx.runtime.files.own_files import OwnFile, own_files, remove_own_files

EXAMPLES = ("sardonyx cache", "sardonyx cache clean --older-than 30", "sardonyx cache clean")

_DAY = 86400.0
_ACTIONS = ("show", "clean")
# Kinds that sessions do not make again: what was measured, and that an engine file was made by this user.
_LEFT = ("machine", "trust_record")
# What a table calls the kinds of files, in its order.
_KINDS = {
    "engine": "engines of models",
    "kernel": "compiled kernels",
    "machine": "figures of the machine",
    "trust_record": "checked engines",
    "misses": "notes on engines",
    "draft": "torn writes",
    "lock": "locks",
}


def cache(
    action: Annotated[str, typer.Argument(metavar="[show|clean]", help="What to do.")] = "show",
    older: Annotated[
        str, typer.Option("--older-than", metavar="DAYS", help="Only what was last used so long ago.")
    ] = "0",
    every: Annotated[
        bool, typer.Option("--all", help="Clean what was measured of the machine and the proofs of engine files, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show or remove this package's own files; sessions that use them go on, later ones make them again."""
    if action not in _ACTIONS:
        raise UsageError(f"cache {action}: expected {' or '.join(_ACTIONS)}")
    before = time.time() - _DAY * whole_number("--older-than", older)
    files = [one for one in own_files() if one.used <= before]
    if action == "clean":
        files = remove_own_files(one for one in files if every or one.kind not in _LEFT)
    folder = default_folder()
    # A folder that is not there yet is made by who keeps something.
    problem = "" if folder is not None and _can_be_made(Path(folder)) else why_nothing_is_kept()
    report = {"folder": folder, "problem": problem or None, "kinds": _summed(files), "ready": _ready()}
    if as_json:
        print(json.dumps({**report, "bytes": sum(one.nbytes for one in files), "removed": action == "clean"}))
    else:
        _show(report, files, is_clean=action == "clean")


def _can_be_made(folder: Path) -> bool:
    """Whether a folder is missing, and the nearest one above it that is there can be written."""
    if os.path.lexists(folder):
        return False
    above = next(one for one in folder.absolute().parents if os.path.lexists(one))
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def _ready() -> dict[str, Any] | None:
    """The pack of kernels for this machine that is installed, and why it is not used if it is not."""
    pack = installed_pack(host_target())
    if pack is None:
        return None
    problem = why_not_ready(pack)
    return {"pack": pack.path, "kernels": 0 if problem else len(pack), "problem": problem or None}


def _summed(files: Sequence[OwnFile]) -> dict[str, dict[str, int]]:
    """How many files of each kind there are, and their bytes."""
    sizes = {kind: [one.nbytes for one in files if one.kind == kind] for kind in _KINDS}
    return {kind: {"files": len(found), "bytes": sum(found)} for kind, found in sizes.items() if found}


def _show(report: dict[str, Any], files: Sequence[OwnFile], *, is_clean: bool) -> None:
    out = console()
    if report["problem"] is not None:
        say(out, report["problem"])
    if report["ready"] is not None and not is_clean:
        ready = report["ready"]
        say(out, f"ready   {ready['problem'] or '{:,} kernels in {}'.format(ready['kernels'], ready['pack'])}")
    if report["folder"] is None:
        return
    say(out, f"folder  {report['folder']}")
    if not files:
        say(out, "nothing was there to be removed" if is_clean else "nothing is kept there")
        return
    table = number_table("removed" if is_clean else "kept", "files", "MB")
    for kind, sums in report["kinds"].items():
        table.add_row(_KINDS[kind], f"{sums['files']:,}", f"{sums['bytes'] / 1e6:,.1f}")
    table.add_row("all", f"{len(files):,}", f"{sum(one.nbytes for one in files) / 1e6:,.1f}")
    out.print(table)
