import numpy as np
import pytest

import sardonyx

VALUES = np.array([1, 2, 3], np.float32)


@pytest.fixture(params=["coo", "coo2", "csr"])
def pair(request):
    ort = pytest.importorskip("onnxruntime")
    made = []
    for module in (sardonyx, ort):
        device = module.OrtDevice.make("cpu", 0)
        if request.param == "csr":
            inner, outer = np.array([0, 1, 2]), np.array([0, 1, 2, 3])
            made.append(module.SparseTensor.sparse_csr_from_numpy([3, 3], VALUES, inner, outer, device))
        else:
            indices = np.array([0, 4, 8]) if request.param == "coo" else np.array([[0, 0], [1, 1], [2, 2]])
            made.append(module.SparseTensor.sparse_coo_from_numpy([3, 3], VALUES, indices, device))
    return made


def test_facts_are_those_of_onnxruntime(pair):
    ours, theirs = pair
    assert ours.format().name == theirs.format().name
    for name in ("dense_shape", "data_type", "device_name"):
        assert getattr(ours, name)() == getattr(theirs, name)()
    np.testing.assert_array_equal(ours.values(), theirs.values())
    assert not ours.values().flags.writeable
    for view, indices in (("as_coo_view", ["indices"]), ("as_csrc_view", ["inner", "outer"])):
        try:
            theirs_view = getattr(theirs, view)()
        except RuntimeError:
            with pytest.raises(RuntimeError, match="does not contain"):
                getattr(ours, view)()
            continue
        for name in indices:
            np.testing.assert_array_equal(getattr(getattr(ours, view)(), name)(), getattr(theirs_view, name)())
    with pytest.raises(RuntimeError, match="does not contain BlockSparse format"):
        ours.as_blocksparse_view()
    with pytest.raises(RuntimeError, match="Cuda is not available"):
        ours.to_cuda(sardonyx.OrtDevice.make("cpu", 0))


def test_the_dense_form(pair):
    np.testing.assert_array_equal(pair[0]._get_c_tensor().to_dense(), np.diag(VALUES))


def test_as_value(pair):
    value = sardonyx.OrtValue.ort_value_from_sparse_tensor(pair[0])
    assert (value.shape(), value.data_type(), value.element_type()) == ([3, 3], "sparse_tensor(float)", 1)
    assert (value.is_sparse_tensor(), value.is_tensor(), value.has_value()) == (True, False, True)
    np.testing.assert_array_equal(value.as_sparse_tensor().values(), VALUES)
    for method in (value.numpy, value.data_ptr, value.tensor_size_in_bytes):
        with pytest.raises(RuntimeError, match="Only OrtValues that are Tensors"):
            method()


def test_wrong_counts_are_refused():
    device = sardonyx.OrtDevice.make("cpu", 0)
    with pytest.raises(RuntimeError, match="3 values need 3 or 6 indices, not 1"):
        sardonyx.SparseTensor.sparse_coo_from_numpy([3, 3], VALUES, np.array([1]), device)
    with pytest.raises(RuntimeError, match="need 3 inner and 4 outer"):
        sardonyx.SparseTensor.sparse_csr_from_numpy([3, 3], VALUES, np.arange(3), np.array([0, 1]), device)
    with pytest.raises(RuntimeError, match="not a sparse tensor"):
        sardonyx.OrtValue.ortvalue_from_numpy(VALUES).as_sparse_tensor()
    with pytest.raises(ValueError, match="SparseTensor is made by"):
        sardonyx.SparseTensor(None)
