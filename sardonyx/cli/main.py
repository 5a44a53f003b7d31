"""The entry point of the command `sardonyx`.

What is imported before `main` is called is what no process does without: Ctrl-C in that time leaves a traceback.
"""

from __future__ import annotations

import sys

from sardonyx.cli import signals, streams


def main() -> None:
    """Run the command line. Every error is one line on standard error; the exit code is 2 for wrong usage, 130 behind
    Ctrl-C, else 1."""
    streams.replace_closed()
    signals.leave_at_once()
    signals.end_with_the_reader()
    from sardonyx.cli.failure import fail

    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        from sardonyx.cli.requirements import install_command

        fail(f"the command line needs {error.name}: install it with {install_command()}")
    from sardonyx.cli.application import run

    try:
        run(sys.argv[1:])
    finally:
        signals.leave_at_once()  # nothing is left to be undone
        sys.stdout.flush()


if __name__ == "__main__":
    main()
