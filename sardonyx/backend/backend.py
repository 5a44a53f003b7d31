"""Prepare and run models by the ONNX backend protocol."""

from __future__ import annotations

import os
import unittest
from typing import Any

import onnx
from onnx import ModelProto
from onnx.backend.base import Backend

from sardonyx.api.options.environment import get_available_providers, get_device
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.backend.backend_rep import OnnxRuntimeBackendRep

# Properties of SessionOptions that `prepare` takes as keywords.
_SESSION_OPTIONS = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "execution_mode",
    "execution_order",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "use_deterministic_compute",
    "use_per_session_threads",
)


class OnnxRuntimeBackend(Backend):  # type: ignore[misc] # onnx is untyped
    """The backend; every method is a class method."""

    allow_released_opsets_only = os.getenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "1") == "1"

    @classmethod
    def is_opset_supported(cls, model: ModelProto) -> tuple[bool, str]:
        """Whether every opset of `model` is a released one, and why not; always where unreleased ones are allowed."""
        if cls.allow_released_opsets_only:
            newest = {domain: max(versions) for domain, versions in _released().items()}
            for entry in model.opset_import:
                domain = entry.domain or "ai.onnx"
                if entry.version > newest.get(domain, entry.version):
                    return False, (
                        "Skipping this test as only released onnx opsets are supported. To run this test set env "
                        "variable ALLOW_RELEASED_ONNX_OPSET_ONLY to 0. Got Domain "
                        f"'{domain}' version '{entry.version}'."
                    )
        return True, ""

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Whether the model's device is supported."""
        return cls.supports_device(get_device() if device is None else device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run on the device called `device`; several may be joined by dashes."""
        return device in get_device().split("-")

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """A path, bytes, ModelProto or session made ready to run.

        `kwargs` set properties of SessionOptions; RuntimeError for one that may not be set here and for a device
        without support, SkipTest for an opset that is not released.
        """
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"Incompatible device expected '{device}', got '{get_device()}'")
        if isinstance(model, ModelProto):
            supported, reason = cls.is_opset_supported(model)
            if not supported:
                raise unittest.SkipTest(reason)
            model = model.SerializeToString()
        options = SessionOptions()
        for name, value in kwargs.items():
            if name in _SESSION_OPTIONS:
                setattr(options, name, value)
            elif hasattr(options, name):
                raise RuntimeError(f"{name} cannot be set here; possible are {', '.join(_SESSION_OPTIONS)}")
        excluded = os.getenv("ORT_ONNX_BACKEND_EXCLUDE_PROVIDERS", "").split(",")
        providers = [name for name in get_available_providers() if name not in excluded]
        return OnnxRuntimeBackendRep(InferenceSession(model, options, providers=providers))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> Any:
        """Prepare and run at once; `kwargs` are those of `prepare`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str | None = None, outputs_info: Any = None, **kwargs: Any
    ) -> Any:
        """NotImplementedError, as in onnxruntime: a session needs a model."""
        raise NotImplementedError("It is much more efficient to run a whole model than every node independently.")


def _released() -> dict[str, list[int]]:
    """Released opsets by domain, from ONNX's own table."""
    found: dict[str, list[int]] = {}
    for domain, version in onnx.helper.OP_SET_ID_VERSION_MAP:
        found.setdefault(domain, []).append(version)
    return found


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
run_model = OnnxRuntimeBackend.run_model
run_node = OnnxRuntimeBackend.run_node
supports_device = OnnxRuntimeBackend.supports_device
