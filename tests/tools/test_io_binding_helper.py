import numpy as np
import pytest

import sardonyx
from sardonyx.transformers.io_binding_helper import TypeHelper
from tests.api.models import add_and_multiply

NAMES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "float16", "float", "double"]
NAMES += ["complex64", "complex128", "bfloat16", "float8e4m3fn", "string"]


def answer(function, argument):
    try:
        return function(argument)
    except ValueError:
        return "refused"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("function", ["ort_type_to_numpy_type", "ort_type_to_torch_type"])
def test_types_are_those_of_onnxruntime(name, function):
    peer = pytest.importorskip("onnxruntime.transformers.io_binding_helper").TypeHelper
    kind = f"tensor({name})"
    theirs = answer(getattr(peer, function), kind)
    ours = answer(getattr(TypeHelper, function), kind)
    assert ours == (np.bool_ if theirs is bool else theirs)


def test_between_numpy_and_torch():
    torch = pytest.importorskip("torch")
    assert TypeHelper.numpy_type_to_torch_type(np.float16) is torch.float16
    assert TypeHelper.torch_type_to_numpy_type(torch.int64) is np.int64
    assert TypeHelper.ort_type_to_onnx_type("tensor(bfloat16)") == 16
    with pytest.raises(ValueError, match="NumPy has no type"):
        TypeHelper.torch_type_to_numpy_type(torch.bfloat16)
    with pytest.raises(ValueError, match="not the type of a tensor"):
        TypeHelper.ort_type_to_numpy_type("seq(tensor(float))")


def test_maps_of_a_session():
    torch = pytest.importorskip("torch")
    session = sardonyx.InferenceSession(add_and_multiply())
    assert TypeHelper.get_input_type(session, "x") == TypeHelper.get_output_type(session, "z") == "tensor(float)"
    assert TypeHelper.get_io_numpy_type_map(session) == dict.fromkeys("xyz", np.float32)
    assert TypeHelper.get_io_torch_type_map(session) == dict.fromkeys("xyz", torch.float32)
    assert TypeHelper.get_io_onnx_type_map(session) == dict.fromkeys("xyz", 1)
    with pytest.raises(ValueError, match="input name q not found"):
        TypeHelper.get_input_type(session, "q")
