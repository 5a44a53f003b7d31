"""The entry point of the command `sardonyx`."""

from __future__ import annotations

import sys
from typing import NoReturn

from sardonyx import errors, log
from sardonyx.cli.failure import CommandError


def main() -> None:
    """Run the command line; every error is one line on standard error and exit code 1 (2 for wrong usage)."""
    try:
        import rich  # noqa: F401
        import typer
    except ImportError as error:
        _fail(f"the command line needs {error.name}: install it with pip install 'sardonyx[cli]'")
    from sardonyx.cli.compile import compile_
    from sardonyx.cli.explain import explain
    from sardonyx.cli.info import info
    from sardonyx.cli.run import run
    from sardonyx.cli.tune_kernels import tune_kernels

    app = typer.Typer(
        name="sardonyx",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_commands)
    app.command()(run)
    app.command()(info)
    app.command()(explain)
    app.command("compile")(compile_)
    app.command("tune-kernels")(tune_kernels)
    log.set_default_severity(log.Severity.FATAL)  # an error is told once, by the line below
    try:
        app()
    except errors.OnnxRuntimeError as error:
        _fail(error.message)
    except (CommandError, OSError, ValueError, MemoryError) as error:
        _fail(str(error) or type(error).__name__)


def _commands() -> None:
    """Run ONNX models and look into them."""


def _fail(message: str) -> NoReturn:
    print(f"sardonyx: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
