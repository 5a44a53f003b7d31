"""Checks that onnxruntime makes when it is imported."""

from __future__ import annotations

import importlib.util

from sardonyx._version import API_VERSION
from sardonyx.api.build_info import cuda_version, package_name


def check_distro_info() -> None:
    """Nothing to warn of: the engine is written in Python and runs on every distribution that Python runs on."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """The package's name, the version of the API, and the version of CUDA (empty)."""
    return package_name, API_VERSION, cuda_version


def check_training_module() -> tuple[None, bool, str, str, str]:
    """There is no training module: (error, has it, package name, version, CUDA version)."""
    has_training = importlib.util.find_spec("sardonyx.training") is not None
    return None, has_training, *get_package_name_and_version_info()
