"""The commands of `sardonyx`, each of which is imported when it is asked for.

`--help` and the completion of shells import none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from sardonyx import errors, log
from sardonyx._version import API_VERSION, __version__
from sardonyx.cli import signals
from sardonyx.cli.failure import WRONG_USAGE, CommandError, fail

# typer's own classes for wrong usage lie where each version of it likes.
_WrongUsage: Any = typer.BadParameter.__mro__[1]


class _Entry(NamedTuple):
    """Where a command is: a module of `sardonyx.cli` with its function and `EXAMPLES`."""

    module: str
    function: str
    summary: str


_COMMANDS = {
    "run": _Entry("run", "run", "Run a model on given or random inputs; print its outputs and the time."),
    "info": _Entry("info", "info", "Show a model's inputs, outputs, operators, weights, cost and placement."),
    "explain": _Entry(
        "explain",
        "explain",
        "Show every kernel of a model: its nodes, rewrites, tile, cost, time, and what runs on the host and why.",
    ),
    "compile": _Entry(
        "compile",
        "compile_",
        "Compile a model ahead to one file: optimised graph, packed weights, machine code and plans.",
    ),
    "convert": _Entry(
        "convert",
        "convert",
        "Write a PyTorch model of transformers as ONNX files, with its caches, and compare them with PyTorch.",
    ),
    "quantize": _Entry(
        "quantize",
        "quantize",
        "Quantise a model: what was quantised and what not and why, size, error and speed before and after.",
    ),
    "warm": _Entry(
        "warm",
        "warm",
        "Fill the caches ahead: compile the kernels of models, and keep engines to begin from.",
    ),
    "chat": _Entry("chat", "chat", "Talk with a language model; tokens come as they are made."),
    "generate": _Entry("generate", "generate", "Continue a text with a language model."),
    "cache": _Entry("cache", "cache", "Show what is kept between processes, where and how much of it; or remove it."),
    "tune-kernels": _Entry(
        "tune_kernels",
        "tune_kernels",
        "Measure this machine and keep the numbers by which sessions cut work from then on. Best on an idle machine.",
    ),
}


def run(arguments: Sequence[str]) -> None:
    """Run a command line; SystemExit with its exit code."""
    log.set_default_severity(log.Severity.FATAL)  # an error is told once, by the lines below
    try:
        code = _application()(list(arguments), prog_name="sardonyx", standalone_mode=False)
    except _WrongUsage as error:
        _refuse(error)
    except errors.OnnxRuntimeError as error:
        fail(error.message)
    except CommandError as error:
        fail(str(error), error.code)
    except (OSError, ValueError, MemoryError, ImportError) as error:
        fail(str(error) or type(error).__name__)
    raise SystemExit(code if isinstance(code, int) else 0)


def _refuse(error: Any) -> None:
    """Say what is wrong with a command line, and which command lists what is right."""
    context = error.ctx
    path = "sardonyx" if context is None else context.command_path
    message = error.format_message()
    stop = "" if message.endswith((".", "?")) else "."
    fail(f"{message}{stop} See {path} --help", WRONG_USAGE)


def _application() -> Any:
    app = typer.Typer(name="sardonyx", cls=_Commands, pretty_exceptions_enable=False, invoke_without_command=True)
    app.callback(epilog=_epilog(("sardonyx run model.onnx", "sardonyx explain model.onnx --run --sort time")))(
        _commands
    )
    for name, entry in _COMMANDS.items():
        app.command(name, cls=_Command, help=entry.summary)(_not_imported)
    return typer.main.get_command(app)


def _not_imported() -> None:
    """Stands for a command in lists of them."""


def _version(asked: bool) -> None:
    if asked:
        print(f"sardonyx {__version__}, with the API of onnxruntime {API_VERSION}")
        raise typer.Exit


def _commands(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run ONNX models and look into them."""
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(WRONG_USAGE)


class _Plain:
    """Help in which options that take no value show no type of one."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in parameters:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return parameters


class _Command(_Plain, TyperCommand):
    """A command."""


class _Commands(_Plain, TyperGroup):
    """The commands, imported one by one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _COMMANDS:
            self.commands[args[0]] = _imported(args[0])
        signals.interrupt()
        return super().resolve_command(ctx, args)


def _imported(name: str) -> Any:
    entry = _COMMANDS[name]
    module = importlib.import_module(f"sardonyx.cli.{entry.module}")
    function: Callable[..., None] = getattr(module, entry.function)
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command(name, cls=_Command, help=entry.summary, epilog=_epilog(module.EXAMPLES))(function)
    return typer.main.get_command(one)


def _epilog(examples: Sequence[str]) -> str:
    return "\n\n".join(["Examples:", *(f"  {example}" for example in examples)])
