"""What the tests of exports need before transformers is imported."""

from __future__ import annotations

import importlib
import importlib.util

if importlib.util.find_spec("torch") is not None:
    importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch
