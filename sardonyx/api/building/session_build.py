"""From a caller's model and options to a compiled model: the construction of a session, step by step."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from sardonyx import errors, log
from sardonyx.api.building import largest_shapes, provider_choice
from sardonyx.api.building.built import Built
from sardonyx.api.building.compiled_model import CompiledModel
from sardonyx.api.building.declarations import declared, metadata, model_texts
from sardonyx.api.building.distinct_symbols import make_distinct
from sardonyx.api.building.extra_outputs import add_outputs
from sardonyx.api.building.length_limits import length_limits
from sardonyx.api.building.model_loading import Source, load, message_of
from sardonyx.api.building.model_overrides import (
    fix_dimensions,
    fix_sizes,
    replace_initializers,
    take_off_inputs,
)
from sardonyx.api.building.placement_report import log_placement
from sardonyx.api.building.session_request import SessionRequest
from sardonyx.api.building.shared_caches import shared_caches
from sardonyx.api.building.signature import Signature
from sardonyx.api.enums import ExecutionMode, GraphOptimizationLevel
from sardonyx.api.options import config_keys
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.decoder_settings import CACHES_IN_PLACE, decoder_choice
from sardonyx.api.options.optimizer_names import resolved
from sardonyx.api.options.rewrite_settings import rewrite_settings, rewrites_left_out
from sardonyx.api.options.run_settings import run_settings
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.values import value_layout
from sardonyx.compiler.llvm.compiler_process import held
from sardonyx.graph.load import LoadedModel
from sardonyx.passes.base import Level
from sardonyx.passes.caches.decoder import AS_THEY_ARE, DecoderChoice, choose
from sardonyx.passes.caches.lengths import NAME as IN_PLACE
from sardonyx.passes.caches.pairs import DeclinedError
from sardonyx.passes.rules.attention_match import BY_HEADS
from sardonyx.passes.rules.reductions import NAME as REDUCTIONS
from sardonyx.passes.settled_branches import settle_branches
from sardonyx.providers import registry
from sardonyx.providers.base import ExecutionProvider
from sardonyx.runtime.json_text import parsed
from sardonyx.runtime.random_state import Streams
from sardonyx.runtime.trace import Trace, span

_NO_FALLBACK = "session.disable_cpu_ep_fallback"
_NO_COMPILE = "session.disable_model_compile"
_KEEPS_FUNCTIONS = "session.disable_aot_function_inlining"
_DISABLED = "optimization.disable_specified_optimizers"
_MINIMAL_BUILD = "optimization.minimal_build_optimizations"
_SAVED_FILE = "session.optimized_model_external_initializers_file_name"
_SAVED_BYTES = "session.optimized_model_external_initializers_min_size_in_bytes"


@held()
def build(request: SessionRequest) -> Built:
    """Load, change, place and compile a model as a request says, and save it where its options ask for that."""
    with (request.streams or Streams()).serving():
        choice = decoder_choice(request.options._config)
        try:
            return _build(request, choice)
        except DeclinedError as declined:  # which may have come in the middle of the rewrite
            request.logger.info(f"{CACHES_IN_PLACE} has no effect: {declined}", "caches")
            return _build(request, replace(choice, in_place=False).without(IN_PLACE, declined))


def _build(request: SessionRequest, decoder: DecoderChoice) -> Built:
    source, options, names, provider_options, disabled, logger, trace = request[:7]
    config = options._config
    config_keys.check(config, logger)
    if config.get(_MINIMAL_BUILD) == "save":
        raise errors.InvalidArgument(
            f"{_MINIMAL_BUILD} value of 'save' is only valid when saving an ORT format model, and those are not written"
        )
    largest = largest_shapes.parse(config.get(largest_shapes.KEY, ""))
    if is_on(config, "ep.context_enable") and not (isinstance(source, str) or config.get("ep.context_file_path")):
        raise errors.InvalidArgument("Both ep_context_path and model_path are empty.")
    event = "model_loading_uri" if isinstance(source, str) else "model_loading_array"
    with span(trace, "Session", event), span(trace, "Compile", "load"):
        loaded = load(source, options)
    for line in loaded.warnings:
        logger.warning(line, "model")
    with span(trace, "Session", "session_initialization"):
        add_outputs(loaded.model, request.extra_outputs)
        fix_dimensions(loaded.model, options._free_dimensions)
        replace_initializers(loaded.model, options._initializers)
        if request.distinct_symbols:
            make_distinct(loaded.model)
        if request.constant_initializers:
            take_off_inputs(loaded.model)
        if request.sizes is not None:
            fix_sizes(loaded.model, request.sizes)
            settle_branches(loaded.model)
        if config.get(value_layout.KEY) == value_layout.TURNED:
            value_layout.turn_value_caches(loaded.model)
        if decoder != AS_THEY_ARE:
            decoder = _chosen_decoder(loaded.model, options, decoder)
        names, provider_options = _chosen(options, names, provider_options, loaded.model)
        providers = _providers(names, provider_options, is_on(config, _NO_FALLBACK), logger)
        declared_outputs = tuple(map(declared, loaded.model.graph.outputs))
        compiled = _compiled(loaded, options, providers, disabled, logger, trace, decoder)
        log_placement(compiled.nodes, [provider.name for provider in providers], logger)
        if is_on(config, _NO_FALLBACK):
            _refuse_fallback(compiled, logger)
        if is_on(config, _NO_COMPILE):
            _refuse_compilation(compiled, logger)
        if largest:
            largest_shapes.check(largest, (*compiled.inputs, *compiled.overridable))
            largest_shapes.reserve(compiled.compiled.plan, largest, logger)
    model = compiled.model
    order = tuple(value.name or "" for value in model.graph.inputs)
    return Built(
        Signature(compiled.inputs, compiled.outputs, compiled.overridable, declared_outputs, order, metadata(model)),
        compiled.compiled.plan,
        compiled.defaults,
        providers,
        lambda: compiled,
        files=loaded.files,
        maps=loaded.maps,
        warnings=[(line, "model") for line in loaded.warnings]
        + [(line, "inference") for line in compiled.contradictions],
        open_ifs=compiled.open_ifs,
        in_place=shared_caches(model.graph),
        length_limits=length_limits(model.graph),
    )


def _chosen_decoder(model: ir.Model, options: SessionOptions, decoder: DecoderChoice) -> DecoderChoice:
    """What a decoder needs before anything else is known of it."""
    opset = model.opset_imports.get("", 1)
    if decoder.in_place and options.optimized_model_filepath and opset < _SCATTER_SINCE:
        raise DeclinedError(f"a model of opset {opset} that is written to a file has no TensorScatter")
    return choose(model, decoder)


def _chosen(
    options: SessionOptions, names: Sequence[str], given: Sequence[Mapping[str, str]], model: ir.Model
) -> tuple[Sequence[str], Sequence[Mapping[str, str]]]:
    """The providers of the constructor, else those of the options."""
    if names or not options.has_providers():
        return names, given
    chosen = options._providers or provider_choice.by_policy(options._policy, model_texts(model))
    return list(chosen), list(chosen.values())


def _providers(
    names: Sequence[str], given: Sequence[Mapping[str, str]], no_fallback: bool, logger: log.Logger
) -> list[ExecutionProvider]:
    try:
        return provider_choice.create(names, given, no_fallback)
    except errors.InvalidArgument as error:
        logger.error(error.message)
        raise


def _compiled(
    loaded: LoadedModel,
    options: SessionOptions,
    providers: Sequence[ExecutionProvider],
    disabled: Collection[str],
    logger: log.Logger,
    trace: Trace | None,
    decoder: DecoderChoice,
) -> CompiledModel:
    config = options._config

    def check_cancelled() -> None:
        if options._cancelled[0]:
            raise errors.ModelLoadCanceled("Session initialization canceled due to user request.")

    def save(model: ir.Model) -> None:
        if options.optimized_model_filepath:
            _save(model, options, loaded.functions if is_on(config, _KEEPS_FUNCTIONS) else ())

    left_out = resolved([*sorted(disabled), *config_keys.names(config, _DISABLED)], logger)
    if options.optimized_model_filepath:  # which others read
        left_out |= {REDUCTIONS}
        if loaded.model.opset_imports.get("", 1) < _ATTENTION_SINCE:
            left_out |= BY_HEADS
    try:
        return CompiledModel.build(
            loaded,
            providers,
            logger,
            Level(int(options.graph_optimization_level)),
            left_out.union(rewrites_left_out(config)),
            strict_shapes=is_on(config, "session.strict_shape_type_inference"),
            on_optimized=save,
            check_cancelled=check_cancelled,
            settings=run_settings(options, left_out),
            rewrites=rewrite_settings(config),
            order=options.execution_order,
            trace=trace,
            caches=decoder,
        )
    except ValueError as error:  # not an error of providers, so it must not make the caller fall back to others
        logger.error(f"Exception during initialization: {error}")
        raise errors.Fail(f"Exception during initialization: {error}") from error


def _refuse_fallback(compiled: CompiledModel, logger: log.Logger) -> None:
    left = [f"{node.op_type} ({node.name})" for node in compiled.nodes if node.provider == registry.CPU]
    if left:
        message = (
            "This session contains graph nodes that are assigned to the default CPU EP, but fallback to CPU EP has "
            "been explicitly disabled by the user."
        )
        logger.error(message)
        raise errors.Fail(f"{message} The nodes: {', '.join(left)}")


def _refuse_compilation(compiled: CompiledModel, logger: log.Logger) -> None:
    """Providers compile the partitions that they take; the CPU's kernels are there without."""
    taken = [
        f"{node.op_type} ({node.name}) by {node.provider}" for node in compiled.nodes if node.provider != registry.CPU
    ]
    if taken:
        message = (
            f"'{_NO_COMPILE}' forbids execution providers to compile, and this model would be compiled: "
            f"{', '.join(taken)}. Compile it ahead, or leave these providers out"
        )
        logger.error(message)
        raise errors.ModelRequiresCompilation(message)


def _save(model: ir.Model, options: SessionOptions, functions: Iterable[ir.Function]) -> None:
    """Write the optimised model, with the definitions of these functions."""
    path = options.optimized_model_filepath
    config = options._config
    if path.endswith(".ort") or config.get("session.save_model_format") == "ORT":
        raise errors.NotImplemented(f"{path}: models are not written in ORT format; choose a name that ends in .onnx")
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise errors.InvalidArgument(f"SystemError : {errno.ENOENT}: the folder of {path} does not exist")
    from sardonyx.graph.saving import save_model  # few sessions write their model

    model.functions.update((function.identifier(), function) for function in functions)
    try:
        save_model(model, path, config.get(_SAVED_FILE) or None, config_keys.number(config, _SAVED_BYTES))
    finally:
        model.functions.clear()


# The opset from which on a model that is written may hold ONNX's Attention.
_ATTENTION_SINCE = 23

# The opset that has the operator which writes into caches.
_SCATTER_SINCE = 24

# Properties that a model may carry in its ort_config, and how their numbers become values.
_CONFIGURED: dict[str, Any] = {
    "enable_profiling": bool,
    "execution_mode": ExecutionMode,
    "graph_optimization_level": GraphOptimizationLevel,
    "inter_op_num_threads": int,
    "intra_op_num_threads": int,
}


def effective_options(source: Source, options: SessionOptions) -> SessionOptions:
    """The options with what the model's own ``ort_config`` says of those that the caller left at their defaults.

    RuntimeError where it is no JSON, or a value has the wrong type.
    """
    proto = message_of(source)
    text = next((item.value for item in proto.metadata_props if item.key == "ort_config"), None)
    if text is None:
        return options
    try:
        settings = parsed(text).get("session_options", {})
        changed = options._copy()
        for key, value in settings.items():
            if key in _CONFIGURED and key not in options._settings:
                setattr(changed, key, _CONFIGURED[key](value))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise RuntimeError(f"Could not finalize session options from the ort_config of the model: {error}") from error
    return changed
