"""How sessions are made: models, options, providers, fallback; where the two agree, checked against onnxruntime."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx import errors
from tests.api import session_models as models

ADD = models.add()
CPU = "CPUExecutionProvider"


def outcome(package: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, list[str]]:
    """The providers of the session, or the class name and text of the error; and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result: Any = package.InferenceSession(*arguments, **keywords).get_providers()
        except Exception as error:
            result = type(error).__name__, str(error)
    return result, [str(item.message).partition("Available providers")[0] for item in caught]


CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "bytearray": ((bytearray(ADD),), {}),
    "none": ((None,), {}),
    "no bytes": ((b"",), {}),
    "missing file": (("nope.onnx",), {}),
    "garbage": ((b"garbage" * 10,), {}),
    "unknown keyword": ((ADD,), {"foo": 1}),
    "empty options": ((ADD, {}), {}),
    "no providers": ((ADD, None, []), {}),
    "pair as list": ((ADD, None, [[CPU, {}]]), {}),
    "set": ((ADD, None, {CPU}), {}),
    "number": ((ADD, None, 5), {}),
    "cuda": ((ADD, None, ["CUDAExecutionProvider", CPU]), {}),
    "unknown": ((ADD, None, ["FooExecutionProvider"]), {}),
    "removed": ((ADD, None, ["ROCMExecutionProvider"]), {}),
    "unknown without fallback": ((ADD, None, ["FooExecutionProvider"]), {"enable_fallback": 0}),
    "duplicate": ((ADD, None, [CPU, CPU]), {}),
    "tuple": ((ADD, None, (CPU,)), {}),
    "options": ((ADD, None, [(CPU, {"arena_extend_strategy": "kSameAsRequested", "x": 1})]), {}),
    "provider options": ((ADD, None, [CPU], [{"use_arena": True}]), {}),
    "provider options alone": ((ADD, None, None, [{"a": 1}]), {}),
    "too many options": ((ADD, None, [CPU], [{}, {}]), {}),
    "options twice": ((ADD, None, [(CPU, {})], [{}]), {}),
    "options no dict": ((ADD, None, [CPU], [5]), {}),
    "options no list": ((ADD, None, [CPU], {}), {}),
    "triple": ((ADD, None, [(CPU, {}, 1)]), {}),
    "number in list": ((ADD, None, [5]), {}),
    "fallback text": ((ADD,), {"enable_fallback": "x"}),
    "disabled optimizers": ((ADD,), {"disabled_optimizers": ["ConstantFolding", "nobody"]}),
    "disabled optimizers number": ((ADD,), {"disabled_optimizers": 5}),
    "bad model with bad provider": ((b"garbage" * 10, None, ["FooExecutionProvider"]), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_construction_is_that_of_onnxruntime(case: str, capfd: pytest.CaptureFixture[str]) -> None:
    theirs = pytest.importorskip("onnxruntime")
    arguments, keywords = CASES[case]
    expected, warned = outcome(theirs, arguments, keywords)
    printed = capfd.readouterr().out
    result, said = outcome(ort, arguments, keywords)
    if isinstance(expected, tuple):
        # What is said twice there is said once, and what the file is may follow.
        kind, text = expected
        assert result[0] == kind
        assert result[1].startswith(re.sub(r"failed:Load model \S+ failed", "failed", text))
    else:
        assert result == expected
    assert said == warned
    assert capfd.readouterr().out == printed


def test_a_model_comes_from_a_path_bytes_or_a_message(tmp_path: Path) -> None:
    path = tmp_path / "modèle.onnx"
    path.write_bytes(ADD)
    x = np.ones((1, 3), np.float32)
    for source in (str(path), path, ADD, onnx.load_model_from_string(ADD)):
        session = ort.InferenceSession(source)
        np.testing.assert_array_equal(session.run(None, {"x": x, "y": x})[0], x + x)
        assert session._model_path == (str(path) if source in (str(path), path) else None)


@pytest.mark.parametrize("source", ["", "no/such/file.onnx"])
def test_a_missing_file_is_named(source: str) -> None:
    with pytest.raises(errors.NoSuchFile, match="File doesn't exist"):
        ort.InferenceSession(source)


def test_a_model_in_ort_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.ort"
    path.write_bytes(b"garbage" * 10)
    with pytest.raises(errors.Fail, match="ORT model verification failed"):
        ort.InferenceSession(path)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    with pytest.raises(errors.Fail, match="ORT format"):
        ort.InferenceSession(ADD, options)


@pytest.mark.parametrize("options", [5, [CPU]])
def test_options_of_another_type_are_refused(options: Any) -> None:
    with pytest.raises(TypeError, match="incompatible"):
        ort.InferenceSession(ADD, options)


def test_a_bare_name_is_one_provider(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ort.InferenceSession(ADD, None, CPU).get_providers() == [CPU]
    assert capfd.readouterr() == ("", "")


def test_excluding_providers_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="Cannot enable both"):
        ort.InferenceSession(ADD, None, ["TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"])


def test_fallback_ends_after_it_was_used(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match=r"not in available provider names\.Available providers: '"):
        session = ort.InferenceSession(ADD, providers=["FooExecutionProvider"])
    assert not session._enable_fallback
    assert session._fallback_providers == [CPU]
    assert "EP Error Unknown Provider Type: FooExecutionProvider" in capfd.readouterr().out
    session.enable_fallback()
    assert session._enable_fallback


def test_the_first_error_is_the_cause_of_the_second(capfd: pytest.CaptureFixture[str]) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.dynamic_block_base", "many")
    with pytest.raises(ValueError, match=r"session\.dynamic_block_base") as caught:
        ort.InferenceSession(ADD, options)
    assert isinstance(caught.value.__cause__, ValueError)


def test_options_are_copied() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(ADD, options)
    options.intra_op_num_threads = 7
    assert session.get_session_options() is not options
    assert session.get_session_options().intra_op_num_threads == 1


def test_providers_of_options_serve_where_the_constructor_names_none() -> None:
    options = ort.SessionOptions()
    options.add_provider(CPU, {})
    assert options.has_providers()
    assert ort.InferenceSession(ADD, options).get_providers() == [CPU]
    with pytest.warns(UserWarning, match="has already been configured with providers"):
        ort.InferenceSession(ADD, options, [CPU])


def test_policies_choose_the_cpu() -> None:
    options = ort.SessionOptions()
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_GPU)
    assert ort.InferenceSession(ADD, options).get_providers() == [CPU]
    asked: list[int] = []
    options.set_provider_selection_policy_delegate(lambda devices, *rest: asked.append(len(devices)) or devices[:1])
    assert ort.InferenceSession(ADD, options).get_providers() == [CPU]
    assert asked == [len(ort.get_ep_devices())]


def test_a_function_that_chooses_devices_knows_the_model() -> None:
    peer = pytest.importorskip("onnxruntime")
    seen: list[tuple[Any, ...]] = []
    for package in (peer, ort):
        options = package.SessionOptions()
        options.set_provider_selection_policy_delegate(lambda devices, *rest: seen.append(rest) or devices[-1:])
        package.InferenceSession(ADD, options)
    assert seen[0] == seen[1]
    assert seen[1][0]["graph_name"] == onnx.load_model_from_string(ADD).graph.name


def _raise(*_: Any) -> Any:
    raise ValueError("my own words")


@pytest.mark.parametrize(
    ("delegate", "text"),
    [
        (_raise, "EP selection delegate failed: ValueError: my own words"),
        (lambda *_: [], "EP selection delegate did not select anything."),
        (lambda devices, *_: devices * 9, "selected too many EP devices"),
        (lambda *_: 3, "EP selection delegate failed: "),
        (lambda *_: [3], "EP selection delegate failed: "),
    ],
)
def test_a_function_that_chooses_no_devices_is_an_error(delegate: Any, text: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    for package in (peer, ort):
        options = package.SessionOptions()
        options.set_provider_selection_policy_delegate(delegate)
        kind, message = outcome(package, (ADD, options), {})[0]
        assert kind == "Fail"
        assert text in message


def test_warnings_point_at_the_caller() -> None:
    settings = ort.SessionOptions()
    settings.add_provider(CPU, {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = ort.InferenceSession(ADD, settings, ["CUDAExecutionProvider", CPU, CPU])
        session.set_providers(["CUDAExecutionProvider"])
    starts = ["Specified provider 'CUDA", "Duplicate", "Specified 'providers'/", "Specified provider 'CUDA"]
    texts = [str(item.message) for item in caught]
    assert all(text.startswith(start) for text, start in zip(texts, starts, strict=False))
    assert {item.filename for item in caught} == {__file__}


NORMALIZED: list[tuple[Any, Any]] = [
    ([CPU, ("CUDAExecutionProvider", {"a": 1})], None),
    (None, None),
    ([CPU], [{1: 2}]),
    ({CPU}, None),
    ([CPU], [{}, {}]),
]


@pytest.mark.parametrize(("providers", "given"), NORMALIZED)
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_arguments_are_normalized_as_by_onnxruntime(providers: Any, given: Any) -> None:
    theirs = pytest.importorskip("onnxruntime.capi.onnxruntime_inference_collection")
    from sardonyx.capi import onnxruntime_inference_collection as ours

    outcomes = []
    for module in (theirs, ours):
        try:
            names, options = module.check_and_normalize_provider_args(providers, given, available_provider_names=[CPU])
            outcomes.append((list(names), list(options)))
        except ValueError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_any_number_is_a_seed() -> None:
    theirs = pytest.importorskip("onnxruntime")
    for seed in (0, -1, 2**40):
        assert ort.set_seed(seed) is theirs.set_seed(seed) is None
    for seed in ("a", 1.5, None):
        with pytest.raises(TypeError):
            ort.set_seed(seed)
        with pytest.raises(TypeError):
            theirs.set_seed(seed)


def test_cpu_fallback_can_be_forbidden() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(errors.InvalidArgument, match="Conflicting session configuration"):
        ort.InferenceSession(ADD, options, [CPU])
    with pytest.raises(errors.Fail, match=r"has been explicitly disabled by the user.*Add \(add0\)"):
        ort.InferenceSession(ADD, options)


def test_sessions_are_subclassed_and_pickled_by_clients() -> None:
    session = PicklableSession(ADD, providers=[CPU])
    again = pickle.loads(pickle.dumps(session))
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(again.run(None, {"x": x, "y": x})[0], x + x)
    assert isinstance(again, ort.InferenceSession)
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(ort.InferenceSession(ADD))


class PicklableSession(ort.InferenceSession):
    """As insightface does it."""

    def __init__(self, source: bytes, **keywords: Any) -> None:
        super().__init__(source, **keywords)
        self.source = source

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "providers": self.get_providers()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["source"], providers=state["providers"])  # type: ignore[misc]


def test_set_providers_has_no_fallback(recwarn: pytest.WarningsRecorder) -> None:
    session = ort.InferenceSession(ADD)
    session.set_providers([CPU], provider_options=[{"use_arena": 1}])
    assert session.get_provider_options() == {CPU: {}}
    with pytest.raises(RuntimeError, match="Unknown Provider Type: Foo"):
        session.set_providers(["Foo"])
    assert session._sess is None
    assert session.get_providers() is None
    with pytest.raises(errors.NoModel):
        session.run(["z"], {})


def test_options_may_lie_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    message = onnx.load_model_from_string(ADD)
    entry = message.metadata_props.add()
    entry.key, entry.value = (
        "ort_config",
        '{"session_options": {"intra_op_num_threads": 3, "graph_optimization_level": 1}}',
    )
    source = message.SerializeToString()
    assert ort.InferenceSession(source).get_session_options().intra_op_num_threads == 0
    found = ort.InferenceSession(source, read_config_from_model=1).get_session_options()
    assert found.intra_op_num_threads == 3
    assert found.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    assert ort.InferenceSession(source).get_session_options().intra_op_num_threads == 3
    for text in (
        "no json",
        '{"session_options": {"intra_op_num_threads": "many"}}',
        '{"session_options": {"intra_op_num_threads": Infinity}}',
        "[" * 100_000,
    ):
        entry.value = text
        with pytest.raises(RuntimeError, match="ort_config"):
            ort.InferenceSession(message.SerializeToString())
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "yes")
    with pytest.raises(RuntimeError, match=r"only supported values for the environment variable .* are '0' and '1'"):
        ort.InferenceSession(ADD)


def test_released_opsets(monkeypatch: pytest.MonkeyPatch) -> None:
    message = onnx.load_model_from_string(ADD)
    message.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    monkeypatch.delenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", raising=False)
    with pytest.raises(errors.Fail, match=r"ONNX Runtime only \*guarantees\* support"):
        ort.InferenceSession(message.SerializeToString())
    options = ort.SessionOptions()
    options.add_session_config_entry("session.allow_released_opsets_only", "0")
    assert ort.InferenceSession(message.SerializeToString(), options).get_outputs()[0].name == "z"


def run_python(code: str) -> str:
    """What a fresh interpreter prints for `code`; stderr is part of it."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_global_thread_pool_rules() -> None:
    code = """
import sardonyx as ort
from tests.api.session_models import add
own = ort.SessionOptions(); shared = ort.SessionOptions(); shared.use_per_session_threads = False
def attempt(function):
    try: function(); print("fine")
    except Exception as error: print(type(error).__name__, error)
attempt(lambda: ort.InferenceSession(add(), shared, enable_fallback=0))
attempt(lambda: ort.set_global_thread_pool_sizes(1, 1))
attempt(lambda: ort.InferenceSession(add(), own, enable_fallback=0))
attempt(lambda: ort.InferenceSession(add(), shared, enable_fallback=0))
attempt(lambda: ort.set_global_thread_pool_sizes(2, 1))
attempt(lambda: ort.ModelCompiler(own, add()).compile_to_bytes())
"""
    lines = run_python(code).splitlines()
    assert lines[0].startswith("RuntimeError use_per_session_threads is False")
    assert lines[1] == "fine"
    assert lines[2] == "RuntimeError use_per_session_threads must be false when using a global thread pool"
    assert lines[3] == "fine"
    assert lines[4].startswith("Fail")
    assert "have already been created, cannot replace them" in lines[4]
    assert lines[5] == "fine"


def test_a_session_works_after_fork() -> None:
    code = """
import os, numpy as np, sardonyx as ort
from tests.api.session_models import add
session = ort.InferenceSession(add())
x = np.ones((1, 3), np.float32)
session.run(None, {"x": x, "y": x})
child = os.fork()
if child == 0:
    os._exit(0 if session.run(None, {"x": x, "y": x})[0][0, 0] == 2 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(code) == "0\n"


def test_a_copy_of_a_session_runs_the_same_model() -> None:
    session = ort.InferenceSession(ADD)
    feeds = {item.name: np.ones((2, 3), np.float32) for item in session.get_inputs()}
    (result,) = copy.copy(session).run(None, feeds)
    np.testing.assert_array_equal(result, session.run(None, feeds)[0])
    with pytest.raises(TypeError, match="cannot pickle"):
        copy.deepcopy(session)


def test_what_is_no_array_is_refused_with_the_name_of_its_input() -> None:
    session = ort.InferenceSession(ADD)
    for given in (memoryview(b"abc"), range(3), "text", object()):
        feeds = {item.name: given for item in session.get_inputs()}
        with pytest.raises(RuntimeError, match=f"for input '{session.get_inputs()[0].name}': give an array"):
            session.run(None, feeds)


@pytest.mark.skipif(os.name != "posix", reason="a working directory cannot be removed")
def test_the_working_directory_may_be_gone(tmp_path: Path) -> None:
    code = f"""
import os, numpy as np, sardonyx as ort
from sardonyx import errors
from tests.api.session_models import add
os.mkdir({str(tmp_path / "gone")!r})
os.chdir({str(tmp_path / "gone")!r})
os.rmdir(os.getcwd())
x = np.ones((1, 3), np.float32)
print(ort.InferenceSession(add()).run(None, {{"x": x, "y": x}})[0][0, 0])
try:
    ort.InferenceSession("model.onnx")
except errors.NoSuchFile:
    print("no such file")
"""
    assert run_python(code) == "2.0\nno such file\n"
