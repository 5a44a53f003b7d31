"""Session config keys: one table of those that onnxruntime knows, what each takes and what it does here.

Keys that are not in the table are kept and ignored, as onnxruntime does. The values of the others are checked when a
session is made. A boolean is on for ``"1"`` and off for everything else; what is neither ``"0"`` nor ``"1"`` is
reported by a warning, because it is more often a slip than an intention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sardonyx import errors, log

Kind = Literal["boolean", "number", "choice", "text"]

# works: does what it says. accepted: checked and kept, nothing here depends on it.
State = Literal["works", "accepted"]


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `pattern` is what a text must match as a whole, `lowest` and `highest` bound a number."""

    name: str
    kind: Kind
    default: str
    state: State
    doc: str
    choices: tuple[str, ...] = ()
    pattern: str = ""
    lowest: int | None = None
    highest: int | None = None
    error: type[Exception] = errors.InvalidArgument
    lenient: bool = False  # a bad value is reported and the default kept


def _on_off(name: str, default: str, state: State, doc: str) -> ConfigKey:
    return ConfigKey(name, "boolean", default, state, doc)


def _text(name: str, default: str, state: State, doc: str) -> ConfigKey:
    return ConfigKey(name, "text", default, state, doc)


_AFFINITIES = r"\d+(-\d+)?(,\d+(-\d+)?)*(;\d+(-\d+)?(,\d+(-\d+)?)*)*"

_TABLE = (
    # Model
    ConfigKey(
        "session.load_model_format",
        "choice",
        "",
        "works",
        "ORT refuses the model: only ONNX is read",
        lenient=True,
        choices=("", "ONNX", "ORT"),
    ),
    ConfigKey(
        "session.save_model_format",
        "choice",
        "",
        "works",
        "ORT refuses to save: only ONNX is written",
        lenient=True,
        choices=("", "ONNX", "ORT"),
    ),
    _text(
        "session.model_external_initializers_file_folder_path",
        "",
        "works",
        "folder of the external data of a model given as bytes",
    ),
    _on_off("session.allow_released_opsets_only", "1", "works", "refuse opsets newer than the newest released one"),
    _on_off(
        "session.strict_shape_type_inference", "0", "works", "declared shapes that contradict inference are errors"
    ),
    _on_off("session.disable_aot_function_inlining", "0", "accepted", "keep model-local functions"),
    ConfigKey(
        "session.max_shape_override",
        "text",
        "",
        "accepted",
        "upper bounds of dynamic inputs, as in 'name:[8,3];other:[1]'",
        pattern=r"([^:;]+:\[[\d, ]*\](;|$))*",
        error=errors.Fail,
    ),
    # Saving the optimised model
    _text(
        "session.optimized_model_external_initializers_file_name",
        "",
        "works",
        "file for the weights of the optimised model",
    ),
    ConfigKey(
        "session.optimized_model_external_initializers_min_size_in_bytes",
        "number",
        "1024",
        "works",
        "smallest weight that goes to that file",
        lowest=0,
        lenient=True,
    ),
    _on_off("session.save_external_prepacked_constant_initializers", "0", "accepted", "store packed weights"),
    # Placement
    _on_off("session.disable_cpu_ep_fallback", "0", "works", "nodes left for the CPU provider are an error"),
    _on_off("session.record_ep_graph_assignment_info", "0", "works", "keep which provider runs which node"),
    _on_off("session.disable_model_compile", "0", "accepted", "forbid providers that compile"),
    _text("session.node_partition_config_file", "", "accepted", "logic streams"),
    # Optimisation
    _text(
        "optimization.disable_specified_optimizers", "", "works", "names of rewrites to leave out, comma between them"
    ),
    _on_off("optimization.enable_gelu_approximation", "0", "accepted", "Gelu becomes FastGelu"),
    _on_off("optimization.enable_cast_chain_elimination", "0", "accepted", "join chains of Cast"),
    ConfigKey(
        "optimization.constant_folding_max_output_size_in_bytes",
        "number",
        "",
        "accepted",
        "largest tensor that folding makes",
        lowest=0,
        lenient=True,
    ),
    ConfigKey(
        "optimization.minimal_build_optimizations",
        "choice",
        "",
        "accepted",
        "what a minimal build saves",
        choices=("", "save", "apply"),
    ),
    ConfigKey(
        "session.graph_optimizations_loop_level",
        "number",
        "1",
        "accepted",
        "repeat levels while they change",
        lowest=0,
        error=errors.RuntimeException,
    ),
    _on_off("session.disable_quant_qdq", "0", "works", "no QDQ fusion"),
    _on_off("session.enable_quant_qdq_cleanup", "0", "accepted", "drop leftover Q-DQ pairs"),
    _on_off("session.disable_double_qdq_remover", "0", "accepted", "keep Q-DQ-Q-DQ"),
    _on_off("session.disable_qdq_constant_folding", "0", "accepted", "no folding through QDQ"),
    _on_off("session.qdqisint8allowed", "0", "accepted", "int8 QDQ when saving for ARM"),
    _on_off("session.x64quantprecision", "0", "accepted", "no saturating 8-bit products"),
    ConfigKey(
        "session.qdq_matmulnbits_accuracy_level",
        "number",
        "4",
        "works",
        "accuracy level of MatMulNBits",
        lowest=0,
        highest=4,
        error=errors.Fail,
    ),
    ConfigKey(
        "session.qdq_matmulnbits_block_size", "number", "", "accepted", "block size of MatMulNBits", error=errors.Fail
    ),
    _on_off("session.enable_dq_matmulnbits_fusion", "0", "accepted", "DequantizeLinear and MatMul become MatMulNBits"),
    ConfigKey(
        "session.gqa_value_layout", "choice", "BNSH", "accepted", "layout of cached values", choices=("BNSH", "BNHS")
    ),
    _on_off("session.debug_layout_transformation", "0", "accepted", "dump models after layout steps"),
    # Weights and memory
    _on_off("session.disable_prepacking", "0", "accepted", "no weight packing"),
    _on_off("session.use_env_allocators", "0", "accepted", "allocators registered in the environment"),
    _on_off("session.use_device_allocator_for_initializers", "0", "accepted", "weights outside the arena"),
    _on_off("session.use_ort_model_bytes_directly", "0", "accepted", "zero-copy ORT-format bytes"),
    _on_off("session.use_ort_model_bytes_for_initializers", "0", "accepted", "weights in ORT-format bytes"),
    _on_off("session.use_external_initializer_file_buffers_directly", "0", "accepted", "weights in the given buffers"),
    _on_off("session.prepack.enable_parallel", "0", "accepted", "pack weights on several threads"),
    _text("session.collect_node_memory_stats_to_file", "", "accepted", "CSV of memory per node"),
    # Threads
    _on_off("session.intra_op.allow_spinning", "1", "works", "idle workers spin before they sleep"),
    _on_off("session.inter_op.allow_spinning", "1", "accepted", "the same for the pool between nodes"),
    ConfigKey(
        "session.dynamic_block_base", "number", "", "accepted", "split loops into shrinking blocks", error=ValueError
    ),
    ConfigKey(
        "session.intra_op_thread_affinities",
        "text",
        "",
        "works",
        "processors of each worker, ids as digits, as in '1,2;3-4'",
        pattern=_AFFINITIES,
        error=RuntimeError,
    ),
    _on_off("session.force_spinning_stop", "0", "works", "stop spinning when the last run returns"),
    ConfigKey("session.intra_op.spin_duration_us", "number", "", "works", "how long workers spin", lenient=True),
    ConfigKey("session.inter_op.spin_duration_us", "number", "", "accepted", "the same between nodes", lenient=True),
    ConfigKey(
        "session.intra_op.spin_backoff_max", "number", "", "accepted", "longest pause while spinning", lenient=True
    ),
    ConfigKey("session.inter_op.spin_backoff_max", "number", "", "accepted", "the same between nodes", lenient=True),
    _on_off("session.set_denormal_as_zero", "0", "works", "flush denormal numbers"),
    # Native code (keys of this project)
    ConfigKey(
        "sardonyx.cpu.kernels",
        "choice",
        "",
        "works",
        "instruction set of the CPU's kernels, or numpy for none; the best of the machine if empty",
        choices=("", "amx", "avx512vnni", "avx512", "avx2", "portable", "neon", "numpy"),
    ),
    ConfigKey(
        "sardonyx.cpu.precision",
        "choice",
        "float32",
        "works",
        "bfloat16 lets products of float32 matrices, those of attention too, be computed in bfloat16",
        choices=("bfloat16", "float32"),
    ),
    _on_off(
        "sardonyx.cpu.fast_products",
        "1",
        "works",
        "large products of float32 matrices with constants take fewer multiplications and round more coarsely",
    ),
    _on_off(
        "sardonyx.cpu.winograd",
        "1",
        "works",
        "convolutions 3x3 with constant weights take fewer multiplications and round otherwise",
    ),
    ConfigKey(
        "sardonyx.cpu.batch_items",
        "text",
        "auto",
        "works",
        "how many items of a batch go through independent layers at a time: auto, a number, or 0 for all",
        pattern=r"auto|\d{1,6}",
    ),
    _on_off(
        "sardonyx.engine_cache",
        "1",
        "works",
        "the first run of a model file leaves an engine from which later sessions begin at once",
    ),
    # Compiled models of other providers
    _on_off("ep.context_enable", "0", "accepted", "write a model with compiled parts"),
    _text("ep.context_file_path", "", "accepted", "where to write it"),
    _on_off("ep.context_embed_mode", "0", "accepted", "compiled parts inside the model"),
    _text("ep.context_model_external_initializers_file_name", "", "accepted", "weights beside that model"),
    _text("ep.context_node_name_prefix", "", "accepted", "prefix of its node names"),
    _on_off("ep.share_ep_contexts", "0", "accepted", "share compiled parts between sessions"),
    _on_off("ep.stop_share_ep_contexts", "0", "accepted", "end sharing"),
    _on_off("ep.enable_weightless", "0", "accepted", "compiled parts without weights"),
    _text("ep.dynamic.workload_type", "Default", "accepted", "priority of the session's work"),
    _on_off("session.compile_only", "0", "accepted", "compile without making the session ready"),
    _on_off("session.fail_on_suboptimal_compiled_model", "0", "accepted", "refuse compiled parts of another device"),
)

CONFIG_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _TABLE}


def is_on(entries: Mapping[str, str], name: str) -> bool:
    """Whether a boolean key is on."""
    return entries.get(name, CONFIG_KEYS[name].default) == "1"


def number(entries: Mapping[str, str], name: str) -> int:
    """The value of a numeric key; its default where it is not given or not a number within its bounds."""
    key = CONFIG_KEYS[name]
    text = entries.get(name, key.default)
    return int(key.default if _complaint(key, text) else text)


def names(entries: Mapping[str, str], name: str) -> list[str]:
    """The parts of a key whose value is a list with commas."""
    return [part.strip() for part in entries.get(name, "").split(",") if part.strip()]


def check(entries: Mapping[str, str], logger: log.Logger) -> None:
    """Check the values of all known keys; the key's own error for a value that onnxruntime refuses too."""
    for name, text in entries.items():
        key = CONFIG_KEYS.get(name)
        if key is None:
            continue
        complaint = _complaint(key, text)
        if complaint and key.lenient:
            logger.warning(f'Invalid value for {name}: "{text}", using default setting: {complaint}', "config")
        elif complaint and key.kind == "boolean":
            logger.warning(f'Value "{text}" of {name} counts as off: {complaint}', "config")
        elif complaint:
            raise key.error(f"Invalid value for session option '{name}': '{text}'. Expected {complaint}.")


def _complaint(key: ConfigKey, text: str) -> str:
    """What a value should have been; empty where it is right."""
    if key.kind == "boolean":
        return "" if text in ("0", "1") else "it must be 0 or 1"
    if key.kind == "choice":
        return "" if text in key.choices else " or ".join(f"'{choice}'" for choice in key.choices if choice)
    if key.kind == "number" and text != key.default:
        return _number_complaint(key, text)
    if key.pattern and not re.fullmatch(key.pattern, text):
        return key.doc
    return ""


def _number_complaint(key: ConfigKey, text: str) -> str:
    bounds = "".join(
        f" {word} {bound}" for word, bound in (("from", key.lowest), ("to", key.highest)) if bound is not None
    )
    try:
        value = int(text)
    except ValueError:
        return f"a whole number{bounds}"
    low = key.lowest is not None and value < key.lowest
    high = key.highest is not None and value > key.highest
    return f"a whole number{bounds}" if low or high else ""
