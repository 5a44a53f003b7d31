"""The command as a whole: what it imports, how it is stopped, its exit codes, its help."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sardonyx._version import API_VERSION, __version__
from sardonyx.cli.application import _COMMANDS
from tests.cli.conftest import Command

COMMANDS = sorted(_COMMANDS)


def _process(*arguments: object, **options: object) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "sardonyx", *map(str, arguments)]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, **options)  # type: ignore[call-overload]


def test_the_package_is_the_command() -> None:
    process = _process("--version")
    assert process.communicate() == (f"sardonyx {__version__}, with the API of onnxruntime {API_VERSION}\n", "")
    assert process.returncode == 0


def test_without_a_command_there_is_help(command: Command) -> None:
    outcome = command()
    assert outcome.code == 2
    assert "Usage: sardonyx" in outcome.out
    assert all(name in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_no_types_of_flags(command: Command, name: str) -> None:
    outcome = command(name, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"Usage: sardonyx {name}" in outcome.out
    assert f"sardonyx {name}" in outcome.out.split("Examples:")[1]
    assert "<bool>" not in outcome.out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tune-kernels", "--help"]])
def test_help_imports_no_engine(arguments: list[str]) -> None:
    """What commands work with is imported by those alone that are run."""
    program = (
        "import json, sys\n"
        f"sys.argv = ['sardonyx', *{arguments!r}]\n"
        "from sardonyx.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = json.loads(done.stderr)
    assert "typer" in modules
    assert not {"onnx", "onnx_ir", "llvmlite", "sardonyx.cli.run", "sardonyx.api.session"} & set(modules)


def test_the_nearest_command_is_named(command: Command) -> None:
    outcome = command("explian")
    assert outcome.code == 2
    assert outcome.err == "sardonyx: error: No such command 'explian'. Did you mean 'explain'? See sardonyx --help\n"


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_an_interrupt_in_the_imports_ends_the_command_silently(tmp_path: Path) -> None:
    """A module of the engine that waits while it is imported; the command says by a file that it has come there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins, pathlib, time\n"
        "real = builtins.__import__\n"
        "def slow(name, *rest, **more):\n"
        "    if name == 'numpy':\n"
        f"        pathlib.Path({str(tmp_path / 'there')!r}).touch()\n"
        "        time.sleep(60)\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = slow\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    process = _process(
        "run",
        "model.onnx",
        env={**os.environ, "PYTHONPATH": path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background ignores it
    )
    until = time.monotonic() + 60
    while not (tmp_path / "there").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


@pytest.mark.skipif(os.name != "posix", reason="closes a pipe")
def test_a_reader_that_goes_away_ends_the_command_silently(embedding: Path) -> None:
    process = _process("info", embedding)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == -signal.SIGPIPE


@pytest.mark.skipif(os.name != "posix", reason="closes the streams in a shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_to_nowhere(embedding: Path, tmp_path: Path, closed: str) -> None:
    """No file that the command opens takes the number of one, and what the others get is the same."""
    before = embedding.read_bytes()
    line = f'exec "$0" -m sardonyx run "$1" --save "$2" {closed}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, str(embedding), str(tmp_path / "saved")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("load" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert embedding.read_bytes() == before
    assert np.load(tmp_path / "saved" / "0_result.npy").shape == (1, 1, 3)


def test_shells_are_given_what_completes_commands() -> None:
    environment = {**os.environ, "_SARDONYX_COMPLETE": "complete_bash", "COMP_WORDS": "sardonyx ex", "COMP_CWORD": "1"}
    process = _process(env=environment)
    out, _ = process.communicate()
    assert out.split() == ["explain"]
