"""Ifs of a model whose inputs have sizes: branches that are always chosen, and such as these sizes break."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx import errors
from sardonyx.graph.constants import subgraphs
from sardonyx.ops.framework.facts import Fact
from sardonyx.ops.framework.inference import Inference, infer_model
from sardonyx.ops.framework.operator import OWN_DOMAIN
from sardonyx.passes.base import Context
from sardonyx.passes.branches import BRANCHES, chosen_branch, inline
from sardonyx.passes.constant_folding import fold_constants


def settle_branches(model: ir.Model) -> None:
    """Put in the place of an If the branch that its condition always chooses, and a node that raises the error in the
    place of a branch that breaks a rule. errors.Fail where the model itself breaks one.
    """
    while True:
        inference = infer_model(model, lenient=True)
        count = len(inference.broken)
        fold_constants(Context(model, inference))
        if len(inference.broken) > count:  # where both branches of an If are, what is around it is
            inference = infer_model(model, lenient=True)
        if not _settle_all(model.graph, inference):
            return


def _settle_all(graph: ir.Graph, inference: Inference) -> bool:
    """Settle the Ifs of a graph and those inside others that stay; whether anything was changed.

    Those in bodies of loops are left alone: sizes of one round need not be those of the next.
    """
    changed = False
    for node in list(graph):
        if node.op_type != "If" or node.domain != "":
            continue
        if _settle(graph, node, inference):
            changed = True
            continue
        for branch in subgraphs(node):
            changed |= _settle_all(branch, inference)
    return changed


def _settle(graph: ir.Graph, node: ir.Node, inference: Inference) -> bool:
    """Settle one If, if it can be; whether it was changed."""
    branches = [node.attributes[name].as_graph() for name in BRANCHES]
    chosen = chosen_branch(node, inference)
    if chosen is not None and chosen not in inference.broken:
        inline(graph, node, chosen)
        return True
    if all(branch in inference.broken for branch in branches):  # so is what is around it
        return False
    for branch, other in (branches, branches[::-1]):
        if branch in inference.broken:
            _refuse(branch, inference.broken[branch], [inference.facts[value] for value in other.outputs])
            return True
    return False


def _refuse(branch: ir.Graph, error: errors.Fail, facts: list[Fact]) -> None:
    """Let a branch raise an error; its outputs look as those of the other one do."""
    names = [value.name for value in branch.outputs]
    outputs = [
        ir.Value(name=name, type=fact.type, shape=None if fact.shape is None else ir.Shape(fact.shape))
        for name, fact in zip(names, facts, strict=True)
    ]
    branch.outputs.clear()
    branch.remove(list(branch), safe=False)
    node = ir.node("Refusal", [], {"message": error.message}, domain=OWN_DOMAIN, outputs=outputs, version=1)
    branch.append(node)
    branch.outputs.extend(outputs)
