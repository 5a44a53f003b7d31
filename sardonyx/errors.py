"""The typed errors of the project: the names, codes and texts that callers of onnxruntime catch.

Every error prints as ``[ONNXRuntimeError] : <code> : <NAME> : <message>``, because programs search for that text;
``error.message`` is the part behind it. As in onnxruntime, none of them is a ``RuntimeError``, so that a caller's
fallback for unavailable providers never swallows a bad model.
"""

from __future__ import annotations

from typing import ClassVar


class OnnxRuntimeError(Exception):
    """Base of all typed errors; never raised itself. `names_node`: whether the message names the node it comes from."""

    code: ClassVar[int]
    status: ClassVar[str]
    names_node = False

    def __init__(self, message: str) -> None:
        super().__init__(f"[ONNXRuntimeError] : {self.code} : {self.status} : {message}")
        self.message = message

    def __reduce__(self) -> tuple[type[OnnxRuntimeError], tuple[str]]:
        return type(self), (self.message,)


class Fail(OnnxRuntimeError):
    """The model or the run is wrong in a way that no narrower class names."""

    code, status = 1, "FAIL"


class InvalidArgument(OnnxRuntimeError):
    """What the caller passed does not fit the model."""

    code, status = 2, "INVALID_ARGUMENT"


class NoSuchFile(OnnxRuntimeError):
    """The model file does not exist."""

    code, status = 3, "NO_SUCHFILE"


class NoModel(OnnxRuntimeError):
    """A session was used before a model was loaded."""

    code, status = 4, "NO_MODEL"


class EngineError(OnnxRuntimeError):
    """The engine met an internal fault."""

    code, status = 5, "ENGINE_ERROR"


class RuntimeException(OnnxRuntimeError):
    """An operation failed while it ran."""

    code, status = 6, "RUNTIME_EXCEPTION"


class InvalidProtobuf(OnnxRuntimeError):
    """The file is not a serialised ONNX model."""

    code, status = 7, "INVALID_PROTOBUF"


class ModelLoaded(OnnxRuntimeError):
    """A model was loaded twice into one session."""

    code, status = 8, "MODEL_LOADED"


class NotImplemented(OnnxRuntimeError):
    """The model is valid, but no execution provider has a kernel for a node."""

    code, status = 9, "NOT_IMPLEMENTED"


class InvalidGraph(OnnxRuntimeError):
    """A node breaks its operator's schema, or the operator is unknown."""

    code, status = 10, "INVALID_GRAPH"


class EPFail(OnnxRuntimeError):
    """An execution provider failed; the session retries on its fallback providers where the caller allows it."""

    code, status = 11, "EP_FAIL"


class ModelLoadCanceled(OnnxRuntimeError):
    """The caller cancelled loading."""

    code, status = 12, "MODEL_LOAD_CANCELED"


class ModelRequiresCompilation(OnnxRuntimeError):
    """The model must be compiled ahead of time for the chosen provider."""

    code, status = 13, "MODEL_REQUIRES_COMPILATION"


class NotFound(OnnxRuntimeError):
    """Something named in a request does not exist."""

    code, status = 14, "NOT_FOUND"


class DeviceReset(OnnxRuntimeError):
    """The device was reset and the session must be made again."""

    code, status = 15, "DEVICE_RESET"
