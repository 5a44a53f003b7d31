"""The log lines that programs search for, and silence where it is asked for."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import helper

import sardonyx as ort
from sardonyx import errors, log
from tests.api import session_models as models
from tests.api.test_session_construction import run_python

LINE = re.compile(
    r"^(\x1b\[(0;93|1;31)m)?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{9} "
    r"\[[VIWEF]:onnxruntime:[^,\]]*, [^\]]+\] .*?(\x1b\[m)?$"
)


def verbose() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level, options.logid = 0, "MYLOG"
    return options


def messages(text: str) -> list[str]:
    assert all(LINE.match(line) for line in text.splitlines())
    return [line.removesuffix("\x1b[m").partition("] ")[2] for line in text.splitlines()]


def test_the_placement_log(capfd: pytest.CaptureFixture[str]) -> None:
    ort.InferenceSession(models.branches(), verbose())
    text = capfd.readouterr().err
    assert "[V:onnxruntime:MYLOG, " in text
    lines = messages(text)
    start = lines.index("Node placements")
    assert lines[start + 1] == " All nodes placed on [CPUExecutionProvider]. Number of nodes: 4"
    assert "All nodes have been placed on [CPUExecutionProvider]." in lines
    (listed,) = [line for line in lines if line.startswith("Provider: [CPUExecutionProvider]: [")]
    assert "MatMul (mm)" in listed
    assert "If (if0)" in listed
    assert "Neg (neg)" in listed


def test_nothing_is_said_in_normal_use(capfd: pytest.CaptureFixture[str]) -> None:
    session = ort.InferenceSession(models.add(), providers=["CPUExecutionProvider"])
    x = np.ones((1, 3), np.float32)
    session.run(None, {"x": x, "y": x})
    assert capfd.readouterr() == ("", "")


def noisy(options: ort.SessionOptions | None) -> None:
    """A model with something to warn about, and a run that fails."""
    source = models.model(
        [helper.make_node("Add", ["x", "y"], ["z"], name="a")],
        [models.value("x", models.FLOAT, ["n"]), models.value("y", models.FLOAT, ["m"])],
        [models.value("z", models.FLOAT, None)],
        [models.weights("unused")],
    ).SerializeToString()
    session = ort.InferenceSession(source, options)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail):
        session.run(None, {"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)})


def test_warnings_are_yellow_and_errors_red(capfd: pytest.CaptureFixture[str]) -> None:
    noisy(None)
    warning, error = capfd.readouterr().err.splitlines()
    assert warning.startswith("\x1b[0;93m")
    assert "[W:onnxruntime:, " in warning
    assert "Removing initializer 'unused'. It is not used by any node and should be removed from the model." in warning
    assert error.startswith("\x1b[1;31m")
    assert error.endswith("\x1b[m")
    assert "Non-zero status code returned while running Add node. Name:'a' Status Message: " in error


def test_a_failing_initialisation_is_an_error_line(capfd: pytest.CaptureFixture[str]) -> None:
    for providers, start in (
        (["CPUExecutionProvider"], "Conflicting session configuration"),
        (None, "This session contains graph nodes"),
    ):
        settings = ort.SessionOptions()
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        with pytest.raises((errors.Fail, errors.InvalidArgument)) as caught:
            ort.InferenceSession(models.add(), settings, providers)
        text = capfd.readouterr().err
        assert text.startswith("\x1b[1;31m")
        assert "[E:onnxruntime:," in text
        (line,) = messages(text)
        assert line.startswith(start)
        assert line in str(caught.value)


def test_an_exception_while_a_session_is_made_is_an_error_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no sense in it")

    monkeypatch.setattr("sardonyx.api.building.session_build.CompiledModel.build", fail)
    with pytest.raises(errors.Fail, match="Exception during initialization: no sense in it"):
        ort.InferenceSession(models.add())
    assert messages(capfd.readouterr().err) == ["Exception during initialization: no sense in it"]


@pytest.mark.parametrize(("severity", "letters"), [(2, "WE"), (3, "E"), (4, "")])
def test_severity_decides_what_is_said(severity: int, letters: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = severity
    noisy(options)
    assert "".join(re.findall(r"\[([VIWEF]):", capfd.readouterr().err)) == letters


def test_the_default_severity_is_that_of_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    ort.set_default_logger_severity(4)
    try:
        noisy(None)
    finally:
        ort.set_default_logger_severity(2)
    assert capfd.readouterr().err == ""
    assert log.default_severity() == 2


@pytest.mark.parametrize("severity", [-1, 5])
def test_severities_have_bounds(severity: int) -> None:
    with pytest.raises(RuntimeError, match="Invalid logging severity"):
        ort.set_default_logger_severity(severity)


def test_overridable_initializers_are_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    ort.InferenceSession(models.add_weights(overridable=True))
    assert "Initializer w appears in graph inputs and will not be treated as constant value" in capfd.readouterr().err


def test_names_of_dimensions_come_back_verbatim() -> None:
    source = models.identity(models.FLOAT, ["past_sequence_length + sequence_length", "a/b", "9lives"])
    assert ort.InferenceSession(source).get_inputs()[0].shape == [
        "past_sequence_length + sequence_length",
        "a/b",
        "9lives",
    ]


def test_telemetry_is_a_word() -> None:
    functions: list[Any] = [ort.disable_telemetry_events, ort.enable_telemetry_events]
    assert [function() for function in functions] == [None, None]
    assert ort.set_default_logger_verbosity(1) is None
    assert ort.get_device() == "CPU"
    assert "ORT Build Info: " in ort.get_build_info()


def test_a_closed_stderr_does_no_harm() -> None:
    code = """
import os
os.close(2)
import sardonyx as ort
from tests.api.session_models import add_weights
print(ort.InferenceSession(add_weights(overridable=True)).get_inputs()[0].name)
"""
    assert run_python(code) == "x\n"
