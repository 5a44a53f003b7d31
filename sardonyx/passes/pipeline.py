"""The rewrites of a model, in order: those of a session, and those of a model that is saved for others.

Both are made of the same rules. A session ends with the operators that its kernels run fastest; a saved model with
those of com.microsoft that programs look for.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import onnx_ir as ir

from sardonyx.ops.framework.inference import Inference, infer_model
from sardonyx.passes.base import DEFAULT, Context, Level, Pass, PassReport, Settings
from sardonyx.passes.branches import NAME as BRANCHES
from sardonyx.passes.branches import settle_known_branches
from sardonyx.passes.cleanup import eliminate_identity, remove_unused
from sardonyx.passes.constant_folding import fold_constants, fold_dequantized_vectors
from sardonyx.passes.denormal_weights import NAME as DENORMALS
from sardonyx.passes.denormal_weights import flush_denormal_weights
from sardonyx.passes.function_bodies import NAME as BODIES
from sardonyx.passes.function_bodies import expand_function_bodies
from sardonyx.passes.known_items import ITEMS, ROUNDS, inline_single_rounds, take_known_items
from sardonyx.passes.loops import INVARIANTS, PRODUCTS, hoist_products, read_invariants
from sardonyx.passes.open_ranks import NAME as RANKS
from sardonyx.passes.open_ranks import sink_open_ranks
from sardonyx.passes.rule import Rule
from sardonyx.passes.rules import (
    activations,
    attention,
    batch_norm,
    biased_gelu,
    casts,
    class_labels,
    convolution,
    gemm,
    grouped_attention,
    layer_norm,
    merged_heads,
    no_effect,
    packed_products,
    partial_rotary,
    products,
    projections,
    quantization,
    quantization_pairs,
    reductions,
    reshapes,
    rotary,
    sizes,
    skip_layer_norm,
    text_categories,
    text_columns,
    transposes,
    unsigned_quantization,
)
from sardonyx.passes.sharing import eliminate_common_subexpressions, share_constants, share_repeated, share_sizes


def passes_up_to(level: Level) -> tuple[Pass, ...]:
    """All passes of a session's level and the levels below it, in the order in which they run."""
    every = (
        # What no kernel takes as it is.
        Pass(BODIES, Level.BASIC, expand_function_bodies),
        *_foldings(),
        # Before other weights are computed from them.
        Pass(DENORMALS, Level.EXTENDED, flush_denormal_weights),
        *_simplifications(),
        Pass(PRODUCTS, Level.EXTENDED, hoist_products),
        # What is quantised on both sides, as integers.
        *_each(quantization_pairs.RULES),
        *unsigned_quantization.PASSES,
        *quantization.PASSES,
        *_each(packed_products.RULES),
        *quantization_pairs.PASSES,
        Pass("DequantizedVectorFolding", Level.EXTENDED, fold_dequantized_vectors),
        # Several operators into one of the same meaning.
        *_each(merged_heads.RULES),
        *_each(grouped_attention.SHARED_RULES),
        *_fusions(),
        *_each(grouped_attention.RULES),
        *_each(biased_gelu.APPROXIMATION_RULES),
        # Once attention is one node: the projections before it, and the products that are left.
        *_each(projections.RULES),
        *_each(skip_layer_norm.RULES),
        *_each(products.RULES),
        # What is left of normalisation, which no convolution takes into its weights.
        *_each(batch_norm.PRODUCT_RULES),
        # Kernels for what two branches give in two forms.
        Pass(RANKS, Level.EXTENDED, sink_open_ranks),
        # What goes over the same elements.
        *_each(reductions.RULES),
        # Classifiers and categories without strings.
        *_each(class_labels.RULES),
        *_each(text_columns.RULES),
        *_each(text_categories.RULES),
        # What the fusions have written once for each layer.
        Pass("RepeatedNodeSharing", Level.EXTENDED, share_repeated),
        # What the others left without readers.
        Pass("RemoveUnused", Level.BASIC, remove_unused),
    )
    return tuple(one for one in every if one.level <= level)


def passes_for_saving() -> tuple[Pass, ...]:
    """The passes of a model that is saved with fused operators, in the order in which they run."""
    from sardonyx.passes.rules import attention_padding, attention_projection, embeddings  # no session needs them

    return (
        *_foldings(),
        *_simplifications(),
        *_each(merged_heads.RULES),
        *_fusions(),
        # Words, positions and segments before the residual, which would take two of them for one.
        *_each(embeddings.RULES),
        *_each(skip_layer_norm.RULES),
        # What callers look for around attention: the mask, the projections, the biases.
        *_each(attention_padding.RULES),
        *_each(attention_projection.RULES),
        *_each(biased_gelu.BIAS_RULES),
        *_each(biased_gelu.APPROXIMATION_RULES),
        *_each(biased_gelu.PRODUCT_RULES),
        Pass("RemoveUnused", Level.BASIC, remove_unused),
    )


def _foldings() -> tuple[Pass, ...]:
    """What leaves out nodes that only constants and their equals need."""
    return (
        # Items of sequences are values like others then, and say more about conditions.
        Pass(ROUNDS, Level.BASIC, inline_single_rounds),
        Pass(ITEMS, Level.BASIC, take_known_items),
        # What Ifs leave, which the others go through as if it had always been there.
        Pass(BRANCHES, Level.BASIC, settle_known_branches),
        # Shapes and constants first: the rules below look for constants.
        Pass("EliminateIdentity", Level.BASIC, eliminate_identity),
        Pass(INVARIANTS, Level.BASIC, read_invariants),
        Pass("ConstantFolding", Level.BASIC, fold_constants),
        # Equal constants make equal nodes.
        Pass("ConstantSharing", Level.BASIC, share_constants),
        Pass("CommonSubexpressionElimination", Level.BASIC, eliminate_common_subexpressions),
        # What is left of shape arithmetic: much of it was read by reshapes alone, which read a constant from here on.
        Pass("ShapeSharing", Level.BASIC, share_sizes),
    )


def _simplifications() -> tuple[Pass, ...]:
    """What leaves fewer and plainer nodes of ONNX."""
    return (
        *_each(gemm.RULES),
        *_each(reshapes.RULES),
        Pass("RemoveUnusedShapes", Level.BASIC, remove_unused),
        # Nodes without effect, between the parts of what the fusions look for.
        *_each(casts.RULES),
        *_each(no_effect.RULES),
        *_each(transposes.RULES),
        *_each(batch_norm.RULES),
        *_each(convolution.RULES),
    )


def _fusions() -> tuple[Pass, ...]:
    """What makes one operator of several."""
    before = (*sizes.RULES, *partial_rotary.RULES, *rotary.RULES)
    return _each((*before, *attention.RULES, *layer_norm.RULES, *activations.RULES))


def _each(rules: Iterable[Rule]) -> tuple[Pass, ...]:
    return tuple(rule.as_pass() for rule in rules)


def apply(
    model: ir.Model,
    level: Level,
    disabled: Collection[str] = (),
    inference: Inference | None = None,
    settings: Settings = DEFAULT,
) -> list[PassReport]:
    """Rewrite a model in place for a session, keeping its meaning and the names of its inputs and outputs.

    `disabled` names passes to leave out; names that no pass has mean nothing. Nothing happens at level DISABLED.
    `inference` is what is known of the model already; it is kept up to date.
    """
    return _run(passes_up_to(level), model, disabled, inference, settings)


def fuse(
    model: ir.Model,
    disabled: Collection[str] = (),
    settings: Settings = DEFAULT,
) -> list[PassReport]:
    """The same for a model that is saved: its operators become those of com.microsoft that onnxruntime fuses them to.

    What is taken for granted is in the rules: a padding mask consists of ones and zeros.
    """
    return _run(passes_for_saving(), model, disabled, None, settings)


def by_rules(model: ir.Model, rules: Iterable[Rule]) -> list[PassReport]:
    """The same by rules that belong to no session and no saved model in general."""
    return _run(_each(rules), model, (), None, DEFAULT)


def _run(
    passes: Iterable[Pass],
    model: ir.Model,
    disabled: Collection[str],
    inference: Inference | None,
    settings: Settings,
) -> list[PassReport]:
    chosen = [one for one in passes if one.name not in disabled and (not one.optional or one.name in settings.enabled)]
    if not chosen:
        return []
    context = Context(model, inference or infer_model(model), settings)
    reports = {one: _report(one, context) for one in chosen}
    repeated = [one for one in chosen if one.level >= _REPEATED.get(settings.loop_level, Level.EXTENDED)]
    for _ in range(_MOST_LOOPS):
        if not repeated or not any(reports[one].changes for one in repeated):
            break
        again = {one: _report(one, context) for one in repeated}
        if not any(report.changes for report in again.values()):
            break
        reports |= {one: reports[one].followed_by(later) for one, later in again.items()}
    return list(reports.values())


# The level from which on passes are repeated, by the loop level; no pass has a level above ALL.
_REPEATED = {0: Level.ALL + 1, 1: Level.LAYOUT}
_MOST_LOOPS = 10


def _report(one: Pass, context: Context) -> PassReport:
    """Run a pass."""
    start = time.perf_counter()
    context.declined = []
    changes = one.run(context)
    return PassReport(one.name, one.level, changes, tuple(context.declined), time.perf_counter() - start)
