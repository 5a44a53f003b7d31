"""What programs ask about the build: versions, extra libraries, a report for bug reports."""

from __future__ import annotations

import os
import platform
import sys

from sardonyx._version import API_VERSION, __version__

package_name = "onnxruntime"
cuda_version = ""


def get_version_string() -> str:
    """The version of onnxruntime whose API is served; Sardonyx's own is `sardonyx.__version__`."""
    return API_VERSION


def has_collective_ops() -> bool:
    """False: there are no operators that span several machines."""
    return False


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Nothing needs to be loaded ahead; RuntimeError for a directory that does not exist.

    As in onnxruntime's build without CUDA, which does not look at the directory where CUDA or cuDNN are asked for.
    """
    if directory and not (cuda or cudnn or os.path.isdir(directory)):
        raise RuntimeError(f"Invalid parameter of directory={directory}. The directory does not exist!")


def print_debug_info() -> None:
    """Print versions and the platform."""
    import numpy as np
    import onnx

    rows = {
        "Sardonyx": __version__,
        "API of onnxruntime": API_VERSION,
        "Python": sys.version.replace("\n", " "),
        "NumPy": np.__version__,
        "ONNX": onnx.__version__,
        "Platform": platform.platform(),
        "Processor": platform.processor() or platform.machine(),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
    }
    for name, value in rows.items():
        print(f"{name}: {value}")
