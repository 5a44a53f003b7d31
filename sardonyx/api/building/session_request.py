"""What a session is asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sardonyx import log
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.runtime.trace import Trace


class SessionRequest(NamedTuple):
    """A model (a path, bytes or a ModelProto), options, providers by name with their options, and the optimizers that
    the session does without. `logger` and `trace` are told what becomes of it.

    With `distinct_symbols` no two dimensions of inputs are taken for equal because they have one name, with
    `constant_initializers` callers cannot override initializers that are inputs of the graph. With `sizes`, the shapes
    of the inputs by name, the model is compiled for these alone.
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
