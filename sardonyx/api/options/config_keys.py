"""Session config keys: one table of those that onnxruntime knows, what each takes and what it does here.

Keys that are not in the table are kept and ignored, as onnxruntime does; one that looks like a slip for a key of it is
reported by a warning. The values of the others are checked when a session is made. A boolean is on for ``"1"`` and
off for everything else; what is neither ``"0"`` nor ``"1"`` is reported by a warning, because it is more often a slip
than an intention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from sardonyx import errors, log
from sardonyx.light_dataclass import dataclass

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


_AFFINITIES = r"(\d+(-\d+)?|[,;])+"

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
    _on_off(
        "session.disable_aot_function_inlining",
        "0",
        "works",
        "the optimised model keeps the definitions of functions; calls are expanded, for no provider takes a whole one",
    ),
    ConfigKey(
        "session.max_shape_override",
        "text",
        "",
        "works",
        "largest shapes of inputs, for which memory is reserved ahead, as in 'name:[8,3];other:[1]'",
        pattern=r"(\s*[^:;]+:\s*\[[\d,\s]*\]\s*(;(?!$)|$))*",
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
    _on_off(
        "session.save_external_prepacked_constant_initializers",
        "0",
        "accepted",
        "store packed weights: engines do, whose layouts are this machine's",
    ),
    # Placement
    _on_off("session.disable_cpu_ep_fallback", "0", "works", "nodes left for the CPU provider are an error"),
    _on_off("session.record_ep_graph_assignment_info", "0", "works", "keep which provider runs which node"),
    _on_off(
        "session.disable_model_compile",
        "0",
        "works",
        "nodes for providers that compile, all but the CPU's, and engines that must be compiled anew are an error",
    ),
    _text(
        "session.node_partition_config_file",
        "",
        "accepted",
        "nothing to do: streams belong to devices with queues of their own",
    ),
    # Optimisation
    _text(
        "optimization.disable_specified_optimizers",
        "",
        "works",
        "names of optimizers to leave out, semicolons between them",
    ),
    _on_off("optimization.enable_gelu_approximation", "0", "works", "Gelu becomes its tanh form, FastGelu"),
    _on_off(
        "optimization.enable_cast_chain_elimination",
        "0",
        "works",
        "a Cast of a Cast to a narrower type of floats converts at once, without the rounding in between",
    ),
    ConfigKey(
        "optimization.constant_folding_max_output_size_in_bytes",
        "number",
        "",
        "works",
        "largest tensor that folding makes, 0 for any; 1 MiB or the size of its inputs without it",
        lowest=0,
        lenient=True,
    ),
    ConfigKey(
        "optimization.minimal_build_optimizations",
        "choice",
        "",
        "works",
        "save is refused: it belongs to files in ORT format, which are not written",
        choices=("", "save", "apply"),
    ),
    ConfigKey(
        "session.graph_optimizations_loop_level",
        "number",
        "1",
        "works",
        "repeat rewrites while they change something: 0 none, 1 those from layout on, 2 those from extended on",
        lowest=0,
        error=errors.RuntimeException,
    ),
    _on_off("session.disable_quant_qdq", "0", "works", "no QDQ fusion"),
    _on_off("session.enable_quant_qdq_cleanup", "0", "works", "drop pairs of Q and DQ that no integer operator took"),
    _on_off("session.disable_double_qdq_remover", "0", "works", "keep Q-DQ-Q-DQ instead of one pair"),
    _on_off("session.disable_qdq_constant_folding", "0", "works", "keep DQ of constants where QDQ fusion is disabled"),
    _on_off("session.qdqisint8allowed", "0", "accepted", "nothing to do: signed bytes are computed as they are"),
    _on_off("session.x64quantprecision", "0", "works", "products of bytes never saturate, with it or without"),
    ConfigKey(
        "session.qdq_matmulnbits_accuracy_level",
        "number",
        "4",
        "works",
        "accuracy level of products with dequantised 4-bit weights: 4 rounds rows to 8 bits where onnxruntime does, "
        "others round nothing",
        lowest=0,
        highest=4,
        error=errors.Fail,
    ),
    ConfigKey(
        "session.qdq_matmulnbits_block_size",
        "choice",
        "",
        "works",
        "block size of MatMulNBits for weights with a scale for each column or one for all: 32 if 0, the largest if -1",
        choices=("", "-1", "0", "16", "32", "64", "128", "256"),
        error=errors.Fail,
    ),
    _on_off(
        "session.enable_dq_matmulnbits_fusion",
        "0",
        "works",
        "DequantizeLinear, Reshape, Transpose and MatMul become MatMulNBits",
    ),
    ConfigKey(
        "session.gqa_value_layout",
        "choice",
        "BNSH",
        "works",
        "layout of past and present values of GroupQueryAttention as the caller binds them",
        choices=("BNSH", "BNHS"),
    ),
    _on_off(
        "session.debug_layout_transformation",
        "0",
        "accepted",
        "nothing to do: layouts are chosen with the kernels, which `sardonyx explain` shows",
    ),
    # Weights and memory
    _on_off(
        "session.disable_prepacking",
        "0",
        "works",
        "products and convolutions of floats read weights as they lie in the model",
    ),
    _on_off("session.use_env_allocators", "0", "works", "runs take their memory from the registered arena"),
    _on_off(
        "session.use_device_allocator_for_initializers",
        "0",
        "works",
        "weights outside of arenas, where they lie in any case",
    ),
    _on_off(
        "session.use_ort_model_bytes_directly", "0", "accepted", "nothing to do: models in ORT format are not read"
    ),
    _on_off(
        "session.use_ort_model_bytes_for_initializers",
        "0",
        "accepted",
        "nothing to do: models in ORT format are not read",
    ),
    _on_off(
        "session.use_external_initializer_file_buffers_directly",
        "0",
        "accepted",
        "weights in the given buffers, where they are read in any case",
    ),
    _on_off("session.prepack.enable_parallel", "0", "accepted", "all processors pack weights in any case"),
    _text(
        "session.collect_node_memory_stats_to_file",
        "",
        "works",
        "CSV of the bytes that each node reads and writes, beside the model",
    ),
    # Threads
    _on_off("session.intra_op.allow_spinning", "1", "works", "idle workers spin before they sleep"),
    _on_off("session.inter_op.allow_spinning", "1", "works", "the same of the threads that parallel mode adds"),
    ConfigKey(
        "session.dynamic_block_base",
        "number",
        "0",
        "works",
        "threads claim blocks: what is left of a step over threads times this; 0 for what its kernel suggests",
        error=ValueError,
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
    ConfigKey(
        "session.intra_op.spin_duration_us", "number", "-1", "works", "how long workers spin; -1: 1000", lenient=True
    ),
    ConfigKey(
        "session.inter_op.spin_duration_us",
        "number",
        "-1",
        "works",
        "the same of the threads that parallel mode adds",
        lenient=True,
    ),
    ConfigKey(
        "session.intra_op.spin_backoff_max",
        "number",
        "1",
        "works",
        "most pauses of a worker between two looks for work: 1, 2, 4… up to this, 64 at most",
        lowest=0,
        lenient=True,
    ),
    ConfigKey(
        "session.inter_op.spin_backoff_max",
        "number",
        "1",
        "works",
        "the same of the threads that parallel mode adds",
        lowest=0,
        lenient=True,
    ),
    _on_off("session.set_denormal_as_zero", "0", "works", "flush denormal numbers"),
    # Decoders (keys of this project)
    _on_off(
        "sardonyx.caches_in_place",
        "0",
        "works",
        "caches of a decoder have one capacity, an input past_length says how much of them is filled, and new rows "
        "are written in place; a model for which that cannot be proved stays as it is",
    ),
    ConfigKey(
        "sardonyx.use_cache_branch",
        "choice",
        "",
        "works",
        "the branch of a merged decoder that the session runs, without a past (0) or with one (1): the input "
        "use_cache_branch goes, and inputs that the other branch alone reads",
        choices=("", "0", "1"),
    ),
    _on_off(
        "sardonyx.last_logits",
        "0",
        "works",
        "the output logits is (batch, 1, vocabulary), for the last position of each row; no product over the "
        "vocabulary is done for the others",
    ),
    _on_off(
        "sardonyx.greedy_tokens",
        "0",
        "works",
        "a last output greedy_tokens (batch, positions of the logits), int64: the place of the largest logit, the "
        "first of equal ones",
    ),
    # Memory and native code (keys of this project)
    ConfigKey(
        "sardonyx.memory_limit",
        "number",
        "",
        "works",
        "bytes that the session may take for packed weights, arenas and results of a run; more is an error",
        lowest=1,
    ),
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
        "bfloat16 lets products of float32 matrices, those of attention too, be computed in bfloat16, and keeps the "
        "weights of recurrent layers so; what convolutions add is rounded, too",
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
        "convolutions 3x3 with constant weights take fewer multiplications and round otherwise; those of bytes are "
        "exact either way",
    ),
    _on_off(
        "sardonyx.cpu.bytes_in_floats",
        "1",
        "works",
        "convolutions of bytes whose groups are small are computed in float32 where that takes less time; their sums "
        "are the same whole numbers",
    ),
    _on_off(
        "sardonyx.cpu.float32_tiles",
        "1",
        "works",
        "on machines with AMX, large products of float32 matrices with constants, and attention of many positions, are "
        "computed in its tiles, each number in three parts that hold all of its bits",
    ),
    ConfigKey(
        "sardonyx.cpu.batch_items",
        "text",
        "auto",
        "works",
        "how many items of a batch go through independent layers at a time: auto, a number, or 0 for all",
        pattern=r"auto|\d{1,6}",
    ),
    ConfigKey(
        "sardonyx.cpu.compile_threads",
        "text",
        "auto",
        "works",
        "how many threads compile kernels beside the one that makes the session: auto for one per core, a number, or 0",
        pattern=r"auto|\d{1,3}",
    ),
    _on_off(
        "sardonyx.engine_cache",
        "1",
        "works",
        "the first run of a model file leaves an engine from which later sessions begin at once",
    ),
    _on_off(
        "sardonyx.engine_compiler",
        "0",
        "works",
        "a session from an engine loads the model and what compiles when it is made, not in the run for whose sizes "
        "the engine has no plan",
    ),
    _on_off(
        "sardonyx.engine_new_sizes",
        "1",
        "works",
        "engines that runs leave get plans for sizes near to those that were run, which are made in the background",
    ),
    _on_off(
        "sardonyx.external_hard_links",
        "0",
        "works",
        "take external data that has a second name by a hard link, as some installers make",
    ),
    _text(
        "sardonyx.external_data_folders",
        "",
        "works",
        "further folders that a model may have its external data in: full paths, as PATH lists them",
    ),
    # Compiled engines, and models that carry them
    _on_off("sardonyx.engine_trusted", "0", "works", "run code of an engine that somebody else made"),
    _text(
        "sardonyx.engine_profiles",
        "",
        "works",
        "shapes that engines are compiled for: 'name:MIN,OPT,MAX;other:SHAPE', several with ;; between them",
    ),
    ConfigKey(
        "sardonyx.engine_sizes",
        "number",
        "4096",
        "works",
        "of how many sizes in the ranges of its profiles an engine has plans at most; 0 for the usual ones alone",
        lowest=0,
        highest=1 << 20,
    ),
    ConfigKey(
        "sardonyx.engine_sizes_seconds",
        "number",
        "120",
        "works",
        "seconds of processor time that plans for sizes in the ranges of profiles may take when an engine is compiled",
        lowest=0,
        highest=1 << 20,
    ),
    _on_off("ep.context_enable", "0", "works", "write the compiled model"),
    _text("ep.context_file_path", "", "works", "where to write it; beside the model, as MODEL_ctx.onnx, if empty"),
    _on_off("ep.context_embed_mode", "0", "works", "the engine inside of that model, not beside it"),
    _text(
        "ep.context_model_external_initializers_file_name",
        "",
        "accepted",
        "weights beside that model: it has none, the engine has them all",
    ),
    _text("ep.context_node_name_prefix", "", "works", "prefix of the name of its node"),
    _on_off("ep.share_ep_contexts", "0", "accepted", "share compiled parts between sessions"),
    _on_off("ep.stop_share_ep_contexts", "0", "accepted", "end sharing"),
    _on_off("ep.enable_weightless", "0", "accepted", "compiled parts without weights"),
    _text("ep.dynamic.workload_type", "Default", "accepted", "priority of the session's work"),
    _on_off("session.compile_only", "0", "accepted", "compile without making the session ready"),
    _on_off(
        "session.fail_on_suboptimal_compiled_model", "0", "works", "engines that must be compiled anew are an error"
    ),
)

CONFIG_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _TABLE}

# How this project's own keys begin, and how alike two names are of which one is a slip for the other.
_OWN = "sardonyx."
_NEAR = 0.85


def is_on(entries: Mapping[str, str], name: str) -> bool:
    """Whether a boolean key is on."""
    return entries.get(name, CONFIG_KEYS[name].default) == "1"


def number(entries: Mapping[str, str], name: str) -> int:
    """The value of a numeric key; its default where it is not given or not a number within its bounds."""
    key = CONFIG_KEYS[name]
    text = entries.get(name, key.default)
    return int(key.default if _complaint(key, text) else text)


def names(entries: Mapping[str, str], name: str) -> list[str]:
    """The parts of a key whose value is a list with semicolons, as in onnxruntime, or commas."""
    return [part.strip() for part in re.split("[;,]", entries.get(name, "")) if part.strip()]


def slip(name: str) -> str:
    """What is wrong with a key that nothing here knows: it is near to a known one, or begins as this project's do.

    Empty for a known key, and for one that may be another program's or another provider's.
    """
    if name in CONFIG_KEYS:
        return ""
    import difflib  # which few sessions need

    folded = {one.casefold(): one for one in CONFIG_KEYS}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_NEAR)
    if not near and not name.startswith(_OWN):
        return ""
    wish = f"did you mean {folded[near[0]]}?" if near else "docs/session.md lists those that have one"
    return f"the session config key {name} has no effect: {wish}"


def check(entries: Mapping[str, str], logger: log.Logger) -> None:
    """Check the values of all known keys; the key's own error for a value that onnxruntime refuses too."""
    for name, text in entries.items():
        key = CONFIG_KEYS.get(name)
        if key is None:
            if complaint := slip(name):
                logger.warning(complaint, "config")
            continue
        complaint = _complaint(key, text)
        if complaint and key.lenient:
            logger.warning(f'Invalid value for {name}: "{text}", using default setting: {complaint}', "config")
        elif complaint and key.kind == "boolean":
            logger.warning(f'Value "{text}" of {name} counts as off: {complaint}', "config")
        elif complaint:
            raise key.error(f"Invalid value for session option '{name}': '{text}'. Expected {complaint}.")


def expected(name: str, text: str) -> str:
    """What the value of a known key should have been; empty where it is right."""
    return _complaint(CONFIG_KEYS[name], text).removeprefix("it must be ")


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
