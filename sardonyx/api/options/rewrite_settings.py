"""What the session config says of rewrites: which ones are left out, and how the others go about it."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.api.options import config_keys
from sardonyx.api.options.config_keys import is_on
from sardonyx.passes.base import (
    DEFAULT,
    DOUBLE_QDQ,
    PACKED_PRODUCTS,
    QDQ,
    QDQ_CLEANUP,
    TURNED_PACKED_PRODUCTS,
    Settings,
)

_NO_QDQ = "session.disable_quant_qdq"
_BYTES = 4  # the accuracy level that lets rows be rounded to bytes
_PACKED_LEVEL = "session.qdq_matmulnbits_accuracy_level"
_PACKED_BLOCK = "session.qdq_matmulnbits_block_size"
_LOOP_LEVEL = "session.graph_optimizations_loop_level"
_FOLDING_LIMIT = "optimization.constant_folding_max_output_size_in_bytes"

# Optional rewrites by the key that asks for them.
_ENABLED = {
    "optimization.enable_gelu_approximation": "GeluApproximation",
    "optimization.enable_cast_chain_elimination": "CastChainElimination",
    "session.enable_dq_matmulnbits_fusion": TURNED_PACKED_PRODUCTS,
}


def rewrite_settings(config: Mapping[str, str]) -> Settings:
    """What the passes read of a session's config."""
    block = int(config.get(_PACKED_BLOCK, "") or DEFAULT.packed_block) or DEFAULT.packed_block
    limit = config.get(_FOLDING_LIMIT, "")
    folds = is_on(config, _NO_QDQ) and not is_on(config, "session.disable_qdq_constant_folding")
    return Settings(
        enabled=frozenset(name for key, name in _ENABLED.items() if is_on(config, key)),
        folding_limit=config_keys.number(config, _FOLDING_LIMIT) if limit.isdecimal() else None,
        folds_dequantized=folds,
        drops_quantization=is_on(config, "session.enable_quant_qdq_cleanup"),
        packed_block=block,
        rounds_packed=_rounds_packed(config),
        loop_level=config_keys.number(config, _LOOP_LEVEL),
    )


def rewrites_left_out(config: Mapping[str, str]) -> tuple[str, ...]:
    """The passes of quantised models that the session does without."""
    double = (DOUBLE_QDQ,) if is_on(config, "session.disable_double_qdq_remover") else ()
    if is_on(config, _NO_QDQ):
        return QDQ, PACKED_PRODUCTS, TURNED_PACKED_PRODUCTS, QDQ_CLEANUP, DOUBLE_QDQ
    # Products of weights that are turned round their rows to bytes; other levels ask for more.
    return double if _rounds_packed(config) else (*double, TURNED_PACKED_PRODUCTS)


def _rounds_packed(config: Mapping[str, str]) -> bool:
    """Whether products of packed weights may round their rows to bytes."""
    return config_keys.number(config, _PACKED_LEVEL) == _BYTES
