"""Handwritten digits: a small convolutional network with depthwise windows and a residual, on scikit-learn's images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.accuracy.task import Data, Task, batches, top1

_TRAINED = 1200  # of 1797 images; the others are the test
_CALIBRATION = 200
_EPOCHS = 30


class _Block(nn.Module):
    """Expansion, depthwise windows, projection and a residual, as mobile networks have them."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        _Block(16, 48),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        _Block(32, 96),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def _images() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The images as (1797, 1, 8, 8) between 0 and 1, and their digits, in a fixed random order."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(len(digits))
    return (images[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8), digits[order]


def build(folder: Path) -> None:
    """Train the network and write it as `model.onnx`."""
    torch.manual_seed(7)
    images, digits = _images()
    x, y = torch.from_numpy(images[:_TRAINED]), torch.from_numpy(digits[:_TRAINED])
    network = _network()
    optimiser = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _EPOCHS)
    for _ in range(_EPOCHS):
        for part in torch.randperm(_TRAINED).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(x[part]), y[part]).backward()
            optimiser.step()
        schedule.step()
    torch.onnx.export(
        network.eval(),
        (x[:2],),
        str(folder / "model.onnx"),
        dynamo=False,
        opset_version=17,
        input_names=["image"],
        output_names=["scores"],
        dynamic_axes={"image": {0: "batch"}, "scores": {0: "batch"}},
    )


def data() -> Data:
    images, digits = _images()
    calibration = batches({"image": images[:_CALIBRATION]}, 20)
    return Data(calibration, batches({"image": images[_TRAINED:]}, 100), digits[_TRAINED:])


TASK = Task("digits", "digits that are right", build, data, top1)
