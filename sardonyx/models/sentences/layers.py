"""What may follow a pooling: a dense layer, a normalisation, or the scaling of vectors to length 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.kernel.evaluate import erf
from sardonyx.models.requirements import require

Floats = np.ndarray[Any, np.dtype[np.float32]]
Layer = Callable[[Floats], Floats]

_LAYER_NORM_EPSILON = np.float32(1e-5)
_SMALLEST_LENGTH = np.float32(1e-12)


def _sigmoid(x: Floats) -> Floats:
    # Of the absolute value, so that nothing overflows.
    small = np.exp(-np.abs(x))
    scaled: Floats = np.where(x >= 0, np.float32(1), small) / (1 + small)
    return scaled


def _gelu(x: Floats) -> Floats:
    halved: Floats = np.float32(0.5) * x * (1 + erf(x * np.float32(np.sqrt(0.5))))
    return halved


# By the names that torch's modules have.
ACTIVATIONS: dict[str, Layer] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, np.float32(0)),
    "GELU": _gelu,
    "Sigmoid": _sigmoid,
    "SiLU": lambda x: x * _sigmoid(x),
}


def activation(name: str) -> Layer:
    """An activation by torch's path of it, such as ``torch.nn.modules.activation.Tanh``."""
    found = ACTIVATIONS.get(name.rpartition(".")[2]) if name.startswith("torch.") else None
    if found is None:
        known = ", ".join(ACTIVATIONS)
        raise errors.NotImplemented(f"The activation {name!r} is none that is known here: torch.nn's {known}")
    return found


def normalised(vectors: Floats) -> Floats:
    """Vectors scaled to length 1; a vector of zeros stays one."""
    lengths = np.sqrt(np.einsum("...i,...i->...", vectors, vectors))[..., None]
    scaled: Floats = vectors / np.maximum(lengths, _SMALLEST_LENGTH)
    return scaled


class Dense:
    """``activation(x @ weight.T + bias)``, with the input, or a product with it, added where it is residual."""

    def __init__(self, weights: dict[str, Floats], config: dict[str, Any]) -> None:
        self._weight = _of(weights, "linear.weight", 2)
        self._bias = weights.get("linear.bias")
        self._residual = bool(config.get("use_residual", False))
        self._residual_weight = weights.get("residual.weight")
        self._activation = activation(str(config.get("activation_function", "torch.nn.modules.activation.Tanh")))
        self.size = len(self._weight)

    def __call__(self, x: Floats) -> Floats:
        _require_size(x, self._weight.shape[1], "A dense layer")
        y = x @ self._weight.T
        if self._bias is not None:
            y += self._bias
        y = self._activation(y)
        if self._residual:
            y = y + (x if self._residual_weight is None else x @ self._residual_weight.T)
        return y


class LayerNorm:
    """Vectors of mean 0 and variance 1, times a weight, plus a bias."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        self._weight = _of(weights, "norm.weight", 1)
        self._bias = _of(weights, "norm.bias", 1)

    def __call__(self, x: Floats) -> Floats:
        _require_size(x, len(self._weight), "A normalisation")
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centred).mean(axis=-1, keepdims=True)
        scaled: Floats = centred / np.sqrt(variance + _LAYER_NORM_EPSILON) * self._weight + self._bias
        return scaled


def read_weights(path: Path) -> dict[str, Floats]:
    """The float32 weights of a module by name: of a safetensors file, or of torch's, which needs torch.

    `errors.Fail` for a file that cannot be read.
    """
    if path.suffix == ".safetensors":
        numpy_file = require("safetensors.numpy", f"Reading {path}")
        try:
            return {name: value.astype(np.float32) for name, value in numpy_file.load_file(path).items()}
        except Exception as error:
            raise errors.Fail(f"{path} is no whole safetensors file ({error}); get the file again") from None
    torch = require("torch", f"Reading {path}")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in tensors.items()}
    except Exception as error:
        raise errors.Fail(f"{path} is no whole file of torch's weights ({error}); get the file again") from None


def _of(weights: dict[str, Floats], name: str, dimensions: int) -> Floats:
    found = weights.get(name)
    if found is None:
        raise errors.Fail(f"The weights of a module have no {name}; there are {', '.join(weights) or 'none'}")
    if found.ndim != dimensions:
        raise errors.Fail(f"{name} of a module has the shape {list(found.shape)}; expected {dimensions} dimensions")
    return found


def _require_size(x: Floats, size: int, what: str) -> None:
    if x.shape[-1] != size:
        raise errors.Fail(
            f"{what} of the folder is for vectors of {size} elements, and the model gives such of {x.shape[-1]}: they "
            "are parts of different models"
        )
