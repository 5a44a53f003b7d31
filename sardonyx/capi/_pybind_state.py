"""Everything of the C level, and the modules that callers reach through this one."""

import os as os
import platform as platform
import warnings as warnings

from sardonyx.capi.onnxruntime_pybind11_state import *  # noqa: F403
