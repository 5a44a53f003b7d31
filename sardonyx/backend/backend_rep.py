"""A prepared model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx.backend.base import BackendRep

from sardonyx.api.options.run_options import RunOptions
from sardonyx.api.session import InferenceSession

_RUN_OPTIONS = ("log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches")


class OnnxRuntimeBackendRep(BackendRep):  # type: ignore[misc] # onnx is untyped
    """A session that takes its inputs in the model's order."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """The outputs, as a list, for a sequence of inputs or for the only one.

        RuntimeError for a wrong number of inputs and for properties of RunOptions other than logging's.
        """
        options = RunOptions()
        for name, value in kwargs.items():
            if name in _RUN_OPTIONS:
                setattr(options, name, value)
            elif hasattr(options, name):
                raise RuntimeError(f"{name} cannot be set here; possible are {', '.join(_RUN_OPTIONS)}")
        names = [argument.name for argument in self._session.get_inputs()]
        if isinstance(inputs, (list, tuple)):
            return self._session.run(None, self._feeds(names, inputs), options)
        if len(names) != 1:
            raise RuntimeError(f"Model expect {len(names)} inputs")
        return self._session.run(None, {names[0]: inputs}, options)

    @staticmethod
    def _feeds(names: Sequence[str], inputs: Sequence[Any]) -> dict[str, Any]:
        if len(names) != len(inputs):
            raise RuntimeError(f"Model expect {len(names)} inputs, got {len(inputs)}")
        return dict(zip(names, inputs, strict=True))
