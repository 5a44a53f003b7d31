import numpy as np
import pytest

import sardonyx
from sardonyx.capi.onnxruntime_pybind11_state import OrtValueVector
from tests.api.models import add_and_multiply

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def session():
    return sardonyx.InferenceSession(add_and_multiply())


@pytest.fixture
def binding(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", X.copy())
    return binding


def run(session, binding):
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


def test_outputs_come_in_the_order_of_binding(session, binding):
    binding.bind_output("z")
    binding.bind_output("y")
    assert [value.has_value() for value in binding.get_outputs()] == [False, False]
    z, y = run(session, binding)
    np.testing.assert_array_equal(z, X * X)
    np.testing.assert_array_equal(y, X + X)


def test_running_again_writes_into_the_same_memory(session, binding):
    array = X.copy()
    binding.bind_cpu_input("x", array)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    first = binding.get_outputs()[0]
    array[:] = 10
    session.run_with_iobinding(binding)
    assert first.numpy().tolist() == [[20, 20, 20]] * 2
    assert binding.get_outputs()[0].data_ptr() == first.data_ptr()
    copied = binding.copy_outputs_to_cpu()[0]
    assert copied.ctypes.data != first.data_ptr()


def test_a_new_shape_gets_new_memory_where_only_the_device_was_bound(session, binding):
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    binding.bind_cpu_input("x", np.ones((4, 3), np.float32))
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].shape() == [4, 3]


def test_pointers(session):
    source, target = X.copy(), np.zeros((2, 3), np.float32)
    binding = sardonyx.IOBinding(session)
    binding.bind_input("x", "cpu", 0, np.float32, (2, 3), source.ctypes.data)
    binding.bind_output(
        name="y", device_type="cpu", device_id=0, element_type=np.float32, shape=(2, 3), buffer_ptr=target.ctypes.data
    )
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target, X + X)


def test_pointers_of_torch(session):
    torch = pytest.importorskip("torch")
    source, target = torch.ones(2, 3), torch.zeros(2, 3)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, source.shape, source.data_ptr())
    binding.bind_output("y", "cpu", 0, np.float32, target.shape, target.data_ptr())
    session.run_with_iobinding(binding)
    assert target.tolist() == [[2, 2, 2]] * 2


def test_values(session, binding):
    target = sardonyx.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32))
    binding.bind_ortvalue_input("x", sardonyx.OrtValue.ortvalue_from_numpy(np.full((2, 3), 4, np.float32)))
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    assert target.numpy().tolist() == [[8, 8, 8]] * 2


def test_bound_memory_of_the_wrong_shape(session, binding):
    target = np.zeros((3, 3), np.float32)
    binding.bind_output("y", "cpu", 0, np.float32, [3, 3], target.ctypes.data)
    with pytest.raises(RuntimeError, match=r"Error in execution: .*'y'.* has shape \{3,3\} but .* is \{2,3\}"):
        session.run_with_iobinding(binding)
    assert not target.any()


def test_what_a_run_refuses(session, binding):
    with pytest.raises(RuntimeError, match=r"Error in execution: At least one output should be requested"):
        session.run_with_iobinding(binding)
    binding.bind_output("q")
    with pytest.raises(RuntimeError, match=r"Error in execution: Invalid output name"):
        session.run_with_iobinding(binding)
    binding.clear_binding_outputs()
    binding.bind_output("y")
    for bad in (X.astype(np.float64), np.ones((4, 2), np.float32), np.ones(4, np.float32)):
        binding.bind_cpu_input("x", bad)
        with pytest.raises(
            RuntimeError, match=r"Error in execution: (Unexpected input data type|Got invalid|Invalid rank)"
        ):
            session.run_with_iobinding(binding)


def test_what_binding_refuses(session, binding):
    value = sardonyx.OrtValue.ortvalue_from_numpy(X)
    with pytest.raises(RuntimeError, match="Failed to find NodeArg with name: q in the def list"):
        binding.bind_cpu_input("q", X)
    with pytest.raises(RuntimeError, match="Failed to find input name in the mapping: q"):
        binding.bind_ortvalue_input("q", value)
    with pytest.raises(ValueError, match="`element_type` and `shape` are to be provided"):
        binding.bind_output("y", buffer_ptr=X.ctypes.data)
    with pytest.raises(RuntimeError, match="non-string"):
        binding.bind_input("x", "cpu", 0, 8, [2, 3], X.ctypes.data)
    with pytest.raises(RuntimeError, match="Unable to create OrtValue from the given python object"):
        binding.bind_cpu_input("x", None)
    with pytest.raises(Exception, match="Unsupported device type: tpu"):
        binding.bind_output("y", "tpu")


def test_memory_that_cannot_be_there_is_refused(binding):
    with pytest.raises(RuntimeError, match="address 0"):
        binding.bind_input("x", "cpu", 0, np.float32, (2, 3), 0)
    with pytest.raises(RuntimeError, match="must be >= 0"):
        binding.bind_input("x", "cpu", 0, np.float32, (-2, 3), X.ctypes.data)
    binding.bind_input("x", "cpu", 0, np.float32, (0, 3), 0)


def test_clearing_and_synchronising_return_nothing(binding):
    assert binding.synchronize_inputs() is None
    assert binding.synchronize_outputs() is None
    assert binding.clear_binding_inputs() is None
    assert binding.clear_binding_outputs() is None
    assert binding.get_outputs() == []


def test_the_binding_of_another_session_is_refused(session, binding):
    other = sardonyx.InferenceSession(add_and_multiply())
    binding.bind_output("y")
    with pytest.raises(ValueError, match="IOBinding must be used with the session that created it"):
        other.run_with_iobinding(binding)


def test_vectors_of_values():
    torch = pytest.importorskip("torch")
    vector = OrtValueVector()
    vector.push_back(sardonyx.OrtValue.ortvalue_from_numpy(X)._ortvalue)
    vector.push_back(sardonyx.OrtValue.ortvalue_from_numpy(np.array([True]))._ortvalue)
    vector.push_back(np.array([1], np.uint8).__dlpack__(), True)
    tensor = torch.ones(2, 3)
    device = sardonyx.OrtDevice.make("cpu", 0)._get_c_device()
    vector.push_back_batch([tensor], [tensor.data_ptr()], [np.float32], [list(tensor.shape)], [device])
    vector.reserve(8)
    vector.shrink_to_fit()
    assert len(vector) == 4
    assert [value.shape() for value in vector] == [[2, 3], [1], [1], [2, 3]]
    assert vector.bool_tensor_indices() == [1, 2]
    assert vector.element_type_at(1) == 9
    assert vector[3].data_ptr() == tensor.data_ptr()
    assert [item.dtype for item in vector.to_dlpacks(torch.utils.dlpack.from_dlpack)][1] == torch.uint8
    with pytest.raises(IndexError):
        vector[9]
