"""The inputs and outputs of a model file, for callers who may never need a session of it."""

from __future__ import annotations

from sardonyx import log
from sardonyx.api.building.declarations import declared
from sardonyx.api.building.model_loading import load
from sardonyx.api.building.node_arg import NodeArg
from sardonyx.api.options import config_keys
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.values import value_layout


def declared_arguments(path: str, options: SessionOptions) -> tuple[list[NodeArg], list[NodeArg]] | None:
    """What `get_inputs` and `get_outputs` tell of a session of the model file `path`, but for sizes of outputs that
    inference alone finds; None where the options change them, or the file leaves types or ranks open.

    The errors of loading the model, and InvalidArgument for config entries that are none.
    """
    config_keys.check(options._config, log.Logger(options.logid, options.log_severity_level).without_warnings())
    if options._free_dimensions or _changes_them(options):
        return None
    graph = load(path, options).model.graph
    given = [declared(value) for value in graph.inputs if value.name not in graph.initializers]
    made = [declared(value) for value in graph.outputs]
    if any(value.kind is None or value.dims is None for value in (*given, *made)):
        return None
    return [value.node_arg() for value in given], [value.node_arg() for value in made]


def _changes_them(options: SessionOptions) -> bool:
    """Whether config entries give a model other inputs or outputs."""
    config = options._config
    if config.get(value_layout.KEY) == value_layout.TURNED:
        return True
    if not any(key.startswith("sardonyx.") for key in config):
        return False
    # What they import, few need.
    from sardonyx.api.options.decoder_settings import decoder_choice
    from sardonyx.passes.caches.decoder import AS_THEY_ARE

    return decoder_choice(config) != AS_THEY_ARE
