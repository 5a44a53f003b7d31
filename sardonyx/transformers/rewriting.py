"""The passes of `sardonyx.passes` over a ModelProto: the rules by which sessions rewrite what they run."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

import onnx_ir as ir
from onnx import ModelProto

from sardonyx.graph.constants import nodes_of
from sardonyx.graph.load import LoadedModel
from sardonyx.graph.saving import to_message
from sardonyx.ops.framework.check import check_model
from sardonyx.passes import pipeline
from sardonyx.passes.base import DEFAULT, Level, PassReport, Settings

logger = logging.getLogger(__name__)

_SHARING = "ConstantSharing"
_JOINT_REDUCTIONS = "ReductionFusion"  # whose operator no other program knows

# Of the fusions of a session, those that hide what onnxruntime's own optimiser and its users look for.
_FOR_SESSIONS_ALONE = frozenset(
    {
        "MatMulScaleFusion",
        "MatmulTransposeFusion",
        "NumberCategories",
        "NumberClasses",
        "NumberColumns",
        "OpenRankSinking",
        "QKVProjectionFusion",
        _JOINT_REDUCTIONS,
    }
)


def at_level(loaded: LoadedModel, level: Level, disabled: Collection[str] = ()) -> list[PassReport]:
    """Rewrite a loaded model as a session of this level does, but for the sharing of constants and joint reductions."""
    check_model(loaded.model)
    return _told(pipeline.apply(loaded.model, level, {_SHARING, _JOINT_REDUCTIONS, *disabled}))


def fused(
    loaded: LoadedModel, level: Level, disabled: Collection[str] = (), settings: Settings = DEFAULT
) -> list[PassReport]:
    """Put fused operators into a loaded model, then what the fusions of a session of this level add to them."""
    check_model(loaded.model)
    reports = pipeline.fuse(loaded.model, disabled, settings)
    if level > Level.BASIC:
        done = {one.name for one in pipeline.passes_up_to(Level.BASIC)}
        reports += pipeline.apply(loaded.model, level, {*done, *_FOR_SESSIONS_ALONE, *disabled})
    return _told(reports)


def message(loaded: LoadedModel, with_shapes: bool = True) -> ModelProto:
    """The ModelProto of a loaded model, whose nodes all have names, with the shapes of its values or without."""
    _name_nodes(loaded.model)
    proto = to_message(loaded.model)
    if not with_shapes:
        del proto.graph.value_info[:]
    return proto


def fusion_names(*kinds: Iterable[str]) -> frozenset[str]:
    """Every pass of fusion but those of these kinds: what to disable for these alone."""
    wanted = set(itertools.chain(*kinds))
    session = {one.name for one in pipeline.passes_up_to(Level.BASIC)}
    return frozenset(one.name for one in pipeline.passes_for_saving() if one.name not in session | wanted)


def _told(reports: Sequence[PassReport]) -> list[PassReport]:
    """Log what passes did and what they left alone."""
    for report in reports:
        if report.changes and report.level > Level.BASIC:
            logger.info("Fused %s: %d", report.name, report.changes)
        for reason in report.declined:
            logger.debug("%s left alone: %s", report.name, reason)
    return list(reports)


def _name_nodes(model: ir.Model) -> None:
    """Name the nodes that have no name, or one that another node has, after their operators."""
    nodes = list(nodes_of(model.graph))
    taken = {node.name for node in nodes}
    seen: set[str | None] = {None, ""}
    counts: dict[str, Callable[[], int]] = {}
    for node in nodes:
        if node.name in seen:
            following = counts.setdefault(node.op_type, itertools.count().__next__)
            while (name := f"{node.op_type}_{following()}") in taken:
                pass
            node.name = name
            taken.add(name)
        seen.add(node.name)
