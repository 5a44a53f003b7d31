"""From a caller's session options to the settings of native execution."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sardonyx import errors
from sardonyx.api.enums import ExecutionMode, GraphOptimizationLevel
from sardonyx.api.options import config_keys, environment
from sardonyx.api.options.config_keys import is_on
from sardonyx.api.options.session_options import SessionOptions
from sardonyx.light_dataclass import dataclass
from sardonyx.runtime.settings import RunSettings
from sardonyx.runtime.threads.processors import default_threads, openmp_is_passive, parse_affinities

KERNELS = "sardonyx.cpu.kernels"
PRECISION = "sardonyx.cpu.precision"
AFFINITIES = "session.intra_op_thread_affinities"
FAST_PRODUCTS = "sardonyx.cpu.fast_products"
WINOGRAD = "sardonyx.cpu.winograd"
FLOAT32_TILES = "sardonyx.cpu.float32_tiles"
BYTES_IN_FLOATS = "sardonyx.cpu.bytes_in_floats"
BATCH_ITEMS = "sardonyx.cpu.batch_items"
COMPILE_THREADS = "sardonyx.cpu.compile_threads"
BLOCK_BASE = "session.dynamic_block_base"
_MOST_BACKOFF = 64  # as in onnxruntime

# What the plan maker does beyond a kernel for each node, by the names under which sessions leave it out. That of the
# layouts is onnxruntime's transformer of the same purpose.
KERNEL_FUSION = "KernelFusion"
LAYOUTS = "NchwcTransformer"
KERNEL_PAIRS = "KernelPairs"
PLAN_OPTIMIZERS = frozenset({KERNEL_FUSION, LAYOUTS, KERNEL_PAIRS})


def run_settings(options: SessionOptions, disabled: Collection[str] = ()) -> RunSettings:
    """The settings that options stand for, without the optimisations that are `disabled` by name.

    InvalidArgument for an instruction set that this machine lacks, RuntimeError for affinities that do not fit, `Fail`
    for a callback that makes threads without one that joins them.
    """
    config = options._config
    level = int(options.graph_optimization_level)
    shared = None if options.use_per_session_threads else environment.global_thread_pool_sizes()
    threads, branches = (options.intra_op_num_threads, options.inter_op_num_threads) if shared is None else shared
    threads = max(0, threads)
    # What a session says of its own threads means nothing to those that all sessions share.
    own: Mapping[str, str] = config if shared is None else {}
    intra, inter = _idling(own, *_INTRA_OP), _idling(own, *_INTER_OP)
    parallel = options.execution_mode == ExecutionMode.ORT_PARALLEL
    kernels = config.get(KERNELS, "")
    if kernels not in ("", "numpy"):
        _check_kernels(kernels)
    return RunSettings(
        threads=threads,
        branches=max(0, branches) if parallel else 1,
        spin=intra.spins,
        spin_us=intra.microseconds,
        backoff=intra.backoff,
        branch_spin=inter.spins,
        branch_spin_us=inter.microseconds,
        branch_backoff=inter.backoff,
        spin_stops=is_on(own, "session.force_spinning_stop"),
        blocks=max(0, config_keys.number(own, BLOCK_BASE)),
        hooks=options._threads.hooks() if shared is None else environment.global_thread_hooks(),
        affinities="" if shared is not None else _affinities(config.get(AFFINITIES, ""), threads),
        kernels=kernels,
        precision=config.get(PRECISION, config_keys.CONFIG_KEYS[PRECISION].default),
        fast_products=is_on(config, FAST_PRODUCTS),
        winograd=is_on(config, WINOGRAD),
        float32_tiles=is_on(config, FLOAT32_TILES),
        bytes_in_floats=is_on(config, BYTES_IN_FLOATS),
        batch_items=_number(config.get(BATCH_ITEMS, config_keys.CONFIG_KEYS[BATCH_ITEMS].default)),
        compile_threads=_number(config.get(COMPILE_THREADS, config_keys.CONFIG_KEYS[COMPILE_THREADS].default)),
        keeps_arena=bool(options.enable_cpu_mem_arena),
        shares_arena=is_on(config, "session.use_env_allocators"),
        reuses_memory=bool(options.enable_mem_reuse),
        keeps_plans=bool(options.enable_mem_pattern),
        packs=not is_on(config, "session.disable_prepacking"),
        flush_denormals=is_on(config, "session.set_denormal_as_zero"),
        fuses=level >= int(GraphOptimizationLevel.ORT_ENABLE_EXTENDED) and KERNEL_FUSION not in disabled,
        layouts=level >= int(GraphOptimizationLevel.ORT_ENABLE_LAYOUT) and LAYOUTS not in disabled,
        pairs=level >= int(GraphOptimizationLevel.ORT_ENABLE_ALL) and KERNEL_PAIRS not in disabled,
    )


@dataclass(frozen=True, slots=True)
class _Idling:
    """What the keys of one of onnxruntime's two pools say about threads that wait for work."""

    spins: bool
    microseconds: int | None
    backoff: int


# The keys of the pools: whether threads spin, for how long, and with pauses of how many turns.
_INTRA_OP = (
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_duration_us",
    "session.intra_op.spin_backoff_max",
)
_INTER_OP = (
    "session.inter_op.allow_spinning",
    "session.inter_op.spin_duration_us",
    "session.inter_op.spin_backoff_max",
)


def _idling(config: Mapping[str, str], spinning: str, duration: str, backoff: str) -> _Idling:
    """What three keys say; ``OMP_WAIT_POLICY`` says whether threads spin where no key does."""
    spins = is_on(config, spinning) if spinning in config else not openmp_is_passive()
    microseconds, pauses = config_keys.number(config, duration), config_keys.number(config, backoff)
    return _Idling(spins, microseconds if microseconds >= 0 else None, min(max(1, pauses), _MOST_BACKOFF))


def _number(text: str) -> int | None:
    """A number of items or threads; None where it is left to the engine."""
    return int(text) if text.isdigit() else None


def _affinities(text: str, threads: int) -> str:
    """The affinities of a thread pool of this many threads (0: the default), none where it has no workers.

    RuntimeError for a text of another form, or with more or fewer groups than there are workers.
    """
    if not text:
        return ""
    try:
        groups = len(parse_affinities(text))
    except ValueError as error:
        raise RuntimeError(str(error)) from error
    threads = threads or default_threads()
    if threads == 1:
        return ""
    if groups != threads - 1:
        raise RuntimeError(
            "Number of affinities does not equal to thread_pool_size minus one, "
            f"affinities: {groups}, thread_pool_size: {threads}"
        )
    return text


def _check_kernels(name: str) -> None:
    from sardonyx.compiler.llvm.target import host_target

    try:
        host_target(name)
    except ValueError as error:
        raise errors.InvalidArgument(f"Invalid value for session option '{KERNELS}': {error}, or 'numpy'") from error
