"""A session in the two steps of onnxruntime's C level, for programs that work below `InferenceSession`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sardonyx import errors
from sardonyx.api.arguments import as_text, wrong_argument
from sardonyx.api.core_session import CoreSession
from sardonyx.api.options.session_options import SessionOptions


class NativeSession(CoreSession):
    """Takes a model first and its providers later, in `initialize_session`; only then can it run."""

    def __init__(self, options: SessionOptions, source: str | bytes, is_path: bool, read_config: bool = False) -> None:
        """Keep the arguments; TypeError for others than these types. `source` is a path where `is_path`, else bytes."""
        if not isinstance(options, SessionOptions):
            raise wrong_argument("__init__()", "SessionOptions", options)
        if not is_path and not isinstance(source, bytes):
            raise wrong_argument("__init__()", "a model as bytes", source)
        self._waiting = (as_text("__init__()", source) if is_path else source, options._copy(), bool(read_config))

    def initialize_session(
        self,
        providers: Sequence[str] = (),
        provider_options: Sequence[Mapping[str, str]] = (),
        disabled_optimizers: Collection[str] = (),
    ) -> None:
        """Load and compile the model; no providers means the default ones. Errors are those of the base class."""
        source, options, read_config = self._waiting
        given = list(provider_options) or [{} for _ in providers]
        super().__init__(source, options, list(providers), given, disabled_optimizers, read_config)

    def __getattr__(self, name: str) -> Any:
        """Only reached for what `initialize_session` sets."""
        if name.startswith("__") or "_plan" in self.__dict__ or "_waiting" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        if name == "_trace":
            return None
        raise errors.NoModel(f"initialize_session must be called before {name.lstrip('_')} is there")
