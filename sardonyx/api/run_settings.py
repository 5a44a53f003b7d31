"""From a caller's session options to the settings of native execution."""

from __future__ import annotations

from sardonyx import errors
from sardonyx.api import config_keys, environment
from sardonyx.api.config_keys import is_on
from sardonyx.api.enums import ExecutionMode
from sardonyx.api.session_options import SessionOptions
from sardonyx.runtime.settings import RunSettings

KERNELS = "sardonyx.cpu.kernels"
PRECISION = "sardonyx.cpu.precision"
FAST_PRODUCTS = "sardonyx.cpu.fast_products"


def run_settings(options: SessionOptions) -> RunSettings:
    """The settings that options stand for; InvalidArgument for an instruction set that this machine lacks."""
    config = options._config
    shared = None if options.use_per_session_threads else environment.global_thread_pool_sizes()
    threads, branches = (options.intra_op_num_threads, options.inter_op_num_threads) if shared is None else shared
    parallel = options.execution_mode == ExecutionMode.ORT_PARALLEL
    kernels = config.get(KERNELS, "")
    if kernels not in ("", "numpy"):
        _check_kernels(kernels)
    duration = config.get("session.intra_op.spin_duration_us", "")
    return RunSettings(
        threads=max(0, threads),
        branches=max(0, branches) if parallel else 1,
        spin=is_on(config, "session.intra_op.allow_spinning"),
        spin_us=int(duration) if duration.isdigit() else None,
        affinities=config.get("session.intra_op_thread_affinities", ""),
        kernels=kernels,
        precision=config.get(PRECISION, config_keys.CONFIG_KEYS[PRECISION].default),
        fast_products=is_on(config, FAST_PRODUCTS),
        keeps_arena=bool(options.enable_cpu_mem_arena),
    )


def _check_kernels(name: str) -> None:
    from sardonyx.compiler.llvm.target import host_target

    try:
        host_target(name)
    except ValueError as error:
        raise errors.InvalidArgument(f"Invalid value for session option '{KERNELS}': {error}, or 'numpy'") from error
