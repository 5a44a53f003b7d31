"""The package and version that onnxruntime would report here."""

from sardonyx._version import API_VERSION
from sardonyx.api.build_info import cuda_version, package_name

__version__ = API_VERSION
__all__ = ["__version__", "cuda_version", "package_name"]
