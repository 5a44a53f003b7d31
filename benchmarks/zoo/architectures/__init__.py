"""Torch modules of the zoo, one file per family. Every function takes nothing and returns a module in eval mode."""

import importlib

import torch

try:
    importlib.import_module("torchvision")
except RuntimeError:
    # PyPI's torchvision is built for the CUDA build of torch. Beside the CPU build its native library does not
    # load and leaves two operators undeclared, for which the import registers shape rules. Declaring them is
    # enough: no model of the zoo calls them. The declarations live as long as this object.
    _TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")
    for _operator in ("nms", "qnms"):
        _TORCHVISION.define(f"{_operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    importlib.import_module("torchvision")
