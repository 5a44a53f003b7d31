"""NumPy arrays and torch tensors, as the same memory: what a caller gave goes in, and the like of it comes out."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sardonyx import errors

# A NumPy array or a torch tensor.
Array = Any


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_numpy(value: object, name: str = "an input") -> np.ndarray[Any, Any]:
    """An array of the same memory for a tensor of the host; lists and numbers become arrays.

    Tensors of other devices are copied to the host. A tensor of bfloat16 becomes an array of `ml_dtypes.bfloat16`.
    `errors.InvalidArgument` for what is no array, as rows of unequal lengths are.
    """
    if is_tensor(value):
        try:
            return _of_tensor(value)
        except (RuntimeError, TypeError, NotImplementedError) as error:  # of devices and layouts without contents here
            raise errors.InvalidArgument(
                f"{name}, a tensor on the device {getattr(value, 'device', '?')}, has no numbers that can be read: "
                f"{' '.join(str(error).split())[:200]}"
            ) from None
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise errors.InvalidArgument(f"{name} is no array: {error}. Pad rows to one length") from None
    if found.dtype == object:
        raise errors.InvalidArgument(f"{name} is no array of numbers, but of type {type(value).__name__}")
    return found


def arrayed(value: object, name: str) -> Array | None:
    """A value as an array, unless it is a tensor or None."""
    return value if value is None or hasattr(value, "shape") else as_numpy(value, name)


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """A torch tensor of the same memory; an array that torch has no type for stays as it is."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError:
        return array


def _of_tensor(tensor: Any) -> np.ndarray[Any, Any]:
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return np.asarray(tensor.cpu().contiguous().view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(tensor.numpy(force=True))
