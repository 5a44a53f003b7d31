"""What a session is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.api.building.signature import Signature
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.plan import Plan

if TYPE_CHECKING:
    from sardonyx.api.building.compiled_model import CompiledModel
    from sardonyx.api.building.session_request import SessionRequest
    from sardonyx.providers.base import ExecutionProvider
    from sardonyx.runtime.memory.mapped_pages import FileMap


@dataclass(frozen=True)
class Built:
    """`plan` gives all outputs; with `is_stored` it comes from an engine. `defaults` are the values of overridable
    initializers by name. `compiled` gives what else there is to know of the model, which lies in `files`; `warnings`
    are the log's lines on it, each with its origin. `open_ifs` are the names of Ifs that leave ranks open which sizes
    of its inputs may tell. `keep`, called with the inputs of a run, keeps an engine; it tells whether to call it again.
    `live` is held as long as the session; with `borrows`, the plans are those of another one. `again` builds the same
    model for another request, whatever its files are by now; without it they must be as they were. `states` are those
    of the model's files where engines of it may be kept. `in_place` are inputs with the outputs that may lie in their
    memory, and the fewest positions of each. `length_limits` are those of the function of that name. `maps` are the
    model's files of which weights are read where they lie. `coverage` says for how many sizes an engine has plans, by
    its profiles."""

    signature: Signature
    plan: Plan
    defaults: Mapping[str, Any]
    providers: Sequence[ExecutionProvider]
    compiled: Callable[[], CompiledModel]
    is_stored: bool = False
    files: Sequence[str] = ()
    warnings: Sequence[Sequence[str]] = ()
    open_ifs: Sequence[str] = ()
    keep: Callable[[Sequence[Any]], bool] | None = None
    live: object = None
    borrows: bool = False
    again: Callable[[SessionRequest], Built] | None = None
    states: Mapping[str, Sequence[int]] | None = None
    in_place: Sequence[tuple[str, str, int]] = ()
    length_limits: Mapping[str, Sequence[int] | None] | None = None
    maps: Sequence[FileMap] = ()
    coverage: Sequence[Mapping[str, Any]] = ()
