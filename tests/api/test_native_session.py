"""The session of the C level, as programs below `InferenceSession` make it; compared with onnxruntime's."""

import numpy as np
import pytest

import sardonyx
from sardonyx import errors
from sardonyx.capi import onnxruntime_pybind11_state as ours
from tests.api import session_models as models

X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize("providers", [[], ["CPUExecutionProvider"]])
@pytest.mark.parametrize("is_path", [True, False])
def test_it_runs_after_its_two_steps(providers, is_path, tmp_path):
    theirs = pytest.importorskip("onnxruntime").capi.onnxruntime_pybind11_state
    (tmp_path / "m.onnx").write_bytes(models.add())
    source = str(tmp_path / "m.onnx") if is_path else models.add()
    for module in (theirs, ours):
        session = module.InferenceSession(module.get_default_session_options(), source, is_path, False)
        session.initialize_session(providers, [{} for _ in providers], set())
        assert [item.name for item in session.inputs_meta] == ["x", "y"]
        assert session.run(["z"], {"x": X, "y": X}, None)[0].tolist() == (X + X).tolist()


def test_it_needs_both_steps():
    session = ours.InferenceSession(sardonyx.SessionOptions(), models.add(), False, False)
    with pytest.raises(errors.NoModel, match="initialize_session must be called"):
        session.run(["z"], {"x": X, "y": X}, None)
    session.initialize_session([], [], set())
    with pytest.raises(AttributeError, match="nonsense"):
        _ = session.nonsense


@pytest.mark.parametrize(
    "arguments", [(models.add(), None, False, False), (sardonyx.SessionOptions(), 5, False, False)]
)
def test_arguments_of_other_types_are_refused(arguments):
    with pytest.raises(TypeError, match="incompatible function arguments"):
        ours.InferenceSession(*arguments)


def test_options_are_copied():
    options = sardonyx.SessionOptions()
    session = ours.InferenceSession(options, models.add(), False, False)
    options.logid = "later"
    session.initialize_session()
    assert session.session_options.logid == ""


def test_the_session_below_tells_what_the_one_above_does():
    peer = pytest.importorskip("onnxruntime")
    for package in (peer, sardonyx):
        options = package.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        below = package.InferenceSession(models.add(), options, ["CPUExecutionProvider"])._sess
        assert below.get_providers() == ["CPUExecutionProvider"]
        assert below.get_provider_options() == {"CPUExecutionProvider": {}}
        assert [item.name for item in (*below.input_meminfos, *below.output_meminfos)] == ["Cpu"] * 3
        assert [item.ep_name for item in below.input_epdevices if item is not None] in (
            [],
            ["CPUExecutionProvider"] * 2,
        )
        assert len(below.input_epdevices) == 2
        (part,) = below.get_provider_graph_assignment_info()
        assert [node.op_type for node in part.get_nodes()] == ["Add"]
        assert below.get_tuning_results() == []
        wrong = {"ep": "Nobody", "results": {}, "validators": {}}
        below.set_tuning_results([wrong], False)
        with pytest.raises(RuntimeError, match="Cannot find execution provider Nobody"):
            below.set_tuning_results([wrong], True)
        with pytest.raises(RuntimeError, match="CPUExecutionProvider does not support TunableOp"):
            below.set_tuning_results([{**wrong, "ep": "CPUExecutionProvider"}], True)
