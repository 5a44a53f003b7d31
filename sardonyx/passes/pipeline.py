"""The rewrites of a model, in order."""

from __future__ import annotations

import time
from collections.abc import Collection

import onnx_ir as ir

from sardonyx.ops.framework.inference import Inference, infer_model
from sardonyx.passes.base import Context, Level, Pass, PassReport
from sardonyx.passes.cleanup import eliminate_identity, remove_unused
from sardonyx.passes.constant_folding import fold_constants
from sardonyx.passes.function_bodies import NAME as BODIES
from sardonyx.passes.function_bodies import expand_function_bodies
from sardonyx.passes.rules import (
    activations,
    attention,
    batch_norm,
    casts,
    class_labels,
    convolution,
    gemm,
    layer_norm,
    no_effect,
    products,
    projections,
    quantization,
    reshapes,
    sizes,
    skip_layer_norm,
    transposes,
)
from sardonyx.passes.sharing import eliminate_common_subexpressions, share_constants, share_sizes


def passes_up_to(level: Level) -> tuple[Pass, ...]:
    """All passes of a level and the levels below it, in the order in which they run."""
    every = (
        # Shapes and constants first: the rules below look for constants.
        Pass(BODIES, Level.BASIC, expand_function_bodies),
        Pass("EliminateIdentity", Level.BASIC, eliminate_identity),
        Pass("ConstantFolding", Level.BASIC, fold_constants),
        # Equal constants make equal nodes.
        Pass("ConstantSharing", Level.BASIC, share_constants),
        Pass("CommonSubexpressionElimination", Level.BASIC, eliminate_common_subexpressions),
        # What is left of shape arithmetic: much of it was read by reshapes alone, which read a constant from here on.
        Pass("ShapeSharing", Level.BASIC, share_sizes),
        *(rule.as_pass() for rule in gemm.RULES),
        *(rule.as_pass() for rule in reshapes.RULES),
        Pass("RemoveUnusedShapes", Level.BASIC, remove_unused),
        # Nodes without effect, between the parts of what the fusions look for.
        *(rule.as_pass() for rule in casts.RULES),
        *(rule.as_pass() for rule in no_effect.RULES),
        *(rule.as_pass() for rule in transposes.RULES),
        *(rule.as_pass() for rule in batch_norm.RULES),
        *(rule.as_pass() for rule in convolution.RULES),
        # What is quantised on both sides, as integers.
        *quantization.PASSES,
        # Several operators into one of the same meaning.
        *(rule.as_pass() for rule in sizes.RULES),
        *(rule.as_pass() for rule in attention.RULES),
        *(rule.as_pass() for rule in layer_norm.RULES),
        *(rule.as_pass() for rule in activations.RULES),
        # Once attention is one node: the projections before it, and the products that are left.
        *(rule.as_pass() for rule in projections.RULES),
        *(rule.as_pass() for rule in skip_layer_norm.RULES),
        *(rule.as_pass() for rule in products.RULES),
        # Classifiers without strings.
        *(rule.as_pass() for rule in class_labels.RULES),
        # What the others left without readers.
        Pass("RemoveUnused", Level.BASIC, remove_unused),
    )
    return tuple(one for one in every if one.level <= level)


def apply(
    model: ir.Model, level: Level, disabled: Collection[str] = (), inference: Inference | None = None
) -> list[PassReport]:
    """Rewrite a model in place, keeping its meaning and the names of its inputs and outputs.

    `disabled` names passes to leave out; names that no pass has mean nothing. Nothing happens at level DISABLED.
    `inference` is what is known of the model already; it is kept up to date.
    """
    chosen = [one for one in passes_up_to(level) if one.name not in disabled]
    if not chosen:
        return []
    context = Context(model, inference or infer_model(model))
    reports = []
    for one in chosen:
        start = time.perf_counter()
        context.declined = []
        changes = one.run(context)
        reports.append(PassReport(one.name, one.level, changes, tuple(context.declined), time.perf_counter() - start))
    return reports
