"""Arrays and tensors are the same memory, whichever way they go."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from sardonyx.models.arrays import as_numpy, as_tensor, is_tensor
from tests.models.tiny_models import Folders

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
pytestmark = pytest.mark.xdist_group("tiny_models")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_and_back(dtype: Any) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype).requires_grad_(dtype.is_floating_point)
    array = as_numpy(tensor)
    assert array.dtype == (ml_dtypes.bfloat16 if dtype == torch.bfloat16 else str(dtype).removeprefix("torch."))
    again = as_tensor(array)
    assert again.dtype == dtype
    assert again.data_ptr() == tensor.data_ptr()
    assert torch.equal(again, tensor.detach())


def test_parts_of_tensors() -> None:
    tensor = torch.arange(12).reshape(3, 4).T[1:]
    assert as_numpy(tensor).tolist() == tensor.tolist()
    assert as_numpy(tensor).ctypes.data == tensor.data_ptr()


def test_what_is_no_tensor() -> None:
    assert not is_tensor(np.ones(2))
    assert as_numpy([[1, 2], [3, 4]]).shape == (2, 2)
    assert as_numpy(3).shape == ()
    with pytest.raises(errors.InvalidArgument, match=r"x is no array.*Pad rows to one length"):
        as_numpy([[1, 2], [3]], "x")
    with pytest.raises(errors.InvalidArgument, match="of type dict"):
        as_numpy({})


def test_without_torch(tiny: Folders) -> None:
    """Arrays go in and come out where torch is not installed."""
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from sardonyx.models import ORTModelForSequenceClassification\n"
        f"model = ORTModelForSequenceClassification.from_pretrained({str(tiny('text-classification'))!r})\n"
        "found = model(input_ids=np.full((2, 5), 7), attention_mask=np.ones((2, 5), np.int64))\n"
        "assert type(found.logits) is np.ndarray and found['logits'].shape == (2, 3), found\n"
        "assert found[0] is found.logits and found.to_tuple()[0] is found.logits\n"
        "assert model.device == 'cpu' and model.dtype == np.float32\n"
        "assert model.to('cpu') is model\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
