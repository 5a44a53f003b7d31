"""What a session is asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sardonyx import log
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.runtime.random_state import Streams
    from sardonyx.runtime.trace import Trace

HARD_LINKS = "sardonyx.external_hard_links"
OTHER_FOLDERS = "sardonyx.external_data_folders"
# The config entry with the folder of the external data of models that are no files; the working directory without it.
EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


class SessionRequest(NamedTuple):
    """A model (a path, bytes or a ModelProto), options, providers by name with their options, and the optimizers that
    the session does without. `logger` and `trace` are told what becomes of it.

    With `distinct_symbols` no two dimensions of inputs are taken for equal because they have one name, with
    `constant_initializers` callers cannot override initializers that are inputs of the graph. With `sizes`, the shapes
    of the inputs by name, the model is compiled for these alone. `extra_outputs` are values inside of the model that
    become outputs behind its own. Random nodes draw from `streams`.
    """

    source: Any
    options: SessionOptions
    names: Sequence[str]
    provider_options: Sequence[Mapping[str, str]]
    disabled: Collection[str]
    logger: log.Logger
    trace: Trace | None = None
    distinct_symbols: bool = False
    constant_initializers: bool = False
    sizes: Mapping[str, tuple[int, ...]] | None = None
    streams: Streams | None = None
    extra_outputs: Sequence[str] = ()

    def wherever(self) -> SessionRequest:
        """The same for whoever builds the model again, from whatever working directory."""
        with contextlib.suppress(OSError):  # the working directory is gone: paths in it lead nowhere
            if isinstance(self.source, str):
                return self._replace(source=os.path.abspath(self.source))
            options = self.options._copy()
            options._config[EXTERNAL_FOLDER] = os.path.abspath(options._config.get(EXTERNAL_FOLDER) or "")
            return self._replace(options=options)
        return self
