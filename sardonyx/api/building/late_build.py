"""`session_build` where it is needed: what loads and compiles models is imported with it, which takes address space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.runtime.memory import address_space

if TYPE_CHECKING:
    from sardonyx.api.building.built import Built
    from sardonyx.api.building.session_request import SessionRequest
    from sardonyx.api.options.session_options import SessionOptions

# What `session_build` takes with onnx and onnx-ir.
_BYTES = 36 << 20


def require_room(what: str, remedy: str) -> None:
    """`errors.Fail` where there is too little address space for what loads and compiles models, unless it is there."""
    address_space.require_import("sardonyx.api.building.session_build", _BYTES, what, remedy)


def build(request: SessionRequest) -> Built:
    """`session_build.build`; `errors.Fail` where there is too little address space to import it."""
    _require_room()
    from sardonyx.api.building import session_build

    return session_build.build(request)


def effective_options(source: object, options: SessionOptions) -> SessionOptions:
    """`session_build.effective_options`, in the same way."""
    _require_room()
    from sardonyx.api.building import session_build

    return session_build.effective_options(source, options)


def _require_room() -> None:
    require_room(
        "Loading a model, for which onnx and onnx-ir are imported,",
        ", or make the session from an engine ('sardonyx compile')",
    )
