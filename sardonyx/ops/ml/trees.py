"""Tree ensembles: TreeEnsemble, TreeEnsembleRegressor, TreeEnsembleClassifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.kernel.program import Host, Kernel, Template
from sardonyx.ops.framework.facts import UNKNOWN, Dim, Fact, tensor, unknown_dim
from sardonyx.ops.framework.inference import Inference
from sardonyx.ops.framework.operator import Array, Operator, Value, operator
from sardonyx.ops.ml.forest import LEAF, MODES, Forest, by_name, leaves_of
from sardonyx.ops.ml.scores import DOMAIN, TRANSFORMS, float_list, labels_of, logistic, probit, rows_of, transformed

_FUNCTIONS = ("AVERAGE", "SUM", "MIN", "MAX")
_MEMBER = 6


def row_count(fact: Fact | None) -> Dim:
    """The number of rows of an input that is a matrix of rows or one row."""
    shape = (fact or UNKNOWN).shape
    if shape is None:
        return unknown_dim()
    return 1 if len(shape) == 1 else shape[0] if shape else unknown_dim()


class _Named(Operator):
    """Trees whose nodes are named by tree and number, as the older two operators have them.

    Splits and weights are of single precision, or of double where the tensor attributes are.
    """

    host_reason = "these trees have no native walk; NumPy walks many rows at once"
    base_values: tuple[float, ...] | None = None
    base_values_as_tensor: ir.TensorProtocol | None = None
    nodes_falsenodeids: tuple[int, ...] = ()
    nodes_featureids: tuple[int, ...] = ()
    nodes_missing_value_tracks_true: tuple[int, ...] | None = None
    nodes_modes: tuple[str, ...] = ()
    nodes_nodeids: tuple[int, ...] = ()
    nodes_treeids: tuple[int, ...] = ()
    nodes_truenodeids: tuple[int, ...] = ()
    nodes_values: tuple[float, ...] | None = None
    nodes_values_as_tensor: ir.TensorProtocol | None = None
    post_transform: str = "NONE"
    _forest: Forest | None = None

    def base(self) -> Array:
        return _floats(self.base_values, self.base_values_as_tensor)

    def forest(self, trees: Any, nodes: Any, targets_of: Any, weights: Array, targets: int) -> Forest:
        """The flat trees, made at the first run; the arguments are the leaves' entries."""
        if self._forest is not None:
            return self._forest
        tree, number = np.array(self.nodes_treeids, np.int64), np.array(self.nodes_nodeids, np.int64)
        count = len(tree)
        values = _floats(self.nodes_values, self.nodes_values_as_tensor)
        lists: dict[str, Any] = {
            "nodes_nodeids": number,
            "nodes_modes": self.nodes_modes,
            "nodes_featureids": self.nodes_featureids,
            "nodes_values": values,
            "nodes_truenodeids": self.nodes_truenodeids,
            "nodes_falsenodeids": self.nodes_falsenodeids,
        }
        for name, given in lists.items():
            if len(given) != count:
                raise ValueError(f"{name} has {len(given)} entries, but nodes_treeids has {count}")
        if not len(trees) == len(nodes) == len(targets_of) == len(weights):
            raise ValueError("the lists of the leaves' trees, nodes, ids and weights must have equal length")
        mode = _modes_of(self.nodes_modes)
        branch = mode != LEAF
        children = np.repeat(np.arange(count), 2)
        for side, ids in enumerate((self.nodes_falsenodeids, self.nodes_truenodeids)):
            wanted = np.array(ids, np.int64)[branch]
            children[side::2][branch] = by_name(tree, number, tree[branch], wanted, "a branch")
        _, roots = np.unique(tree, return_index=True)
        missing = np.zeros(count, bool)
        if self.nodes_missing_value_tracks_true:
            missing = np.array(self.nodes_missing_value_tracks_true, bool)
        ends = by_name(tree, number, np.array(trees, np.int64), np.array(nodes, np.int64), "a leaf's weight")
        leaves = leaves_of(count, ends, np.array(targets_of, np.int64), weights, targets)
        feature = np.where(branch, np.array(self.nodes_featureids, np.int64), 0)
        self._forest = Forest(np.sort(roots), mode, feature, values, missing, children, leaves)
        return self._forest

    def rows(self, data: Array) -> Array:
        """The input's rows in the precision that they are compared in."""
        rows = rows_of(data)
        return rows if rows.dtype.kind == "f" else rows.astype(np.float32)


def _floats(values: Any, tensor_values: ir.TensorProtocol | None) -> Array:
    return float_list(values) if tensor_values is None else np.asarray(tensor_values.numpy()).reshape(-1)


def _modes_of(names: Sequence[str]) -> Array:
    known = {"LEAF": LEAF, **{name: index for index, name in enumerate(MODES)}}
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        raise ValueError(f"nodes_modes holds '{wrong}', which is none of {', '.join(known)}")
    return np.array([known[name] for name in names], np.int64)


def _regression(scores: Array, counts: Array, base: Array, transform: str) -> Array:
    """Aggregated scores with base values and post transform; one score alone knows PROBIT only.

    A target that no leaf of a row has a weight for stays 0, without its base value, as in onnxruntime.
    """
    targets = scores.shape[1]
    if base.size:
        if base.size not in (1, targets) or (targets > 1 and base.size == 1):
            raise ValueError(f"base_values has {base.size} entries for {targets} targets")
        scores = np.where(counts > 0, scores + base, 0)
    if transform not in TRANSFORMS:
        raise ValueError(f"post_transform '{transform}' is none of {', '.join(TRANSFORMS)}")
    if targets == 1:
        return probit(scores) if transform == "PROBIT" else scores
    return transformed(scores, transform)


def _scores_kernel(
    forest: Callable[[], Forest],
    targets: int,
    function: str,
    base: Array,
    transform: str,
    result: Any,
    run: Callable[..., Sequence[Value]],
) -> Kernel:
    """The native kernel of trees for regression; a host step, which raises the error, where attributes are wrong."""
    wrong = function not in _FUNCTIONS or transform not in TRANSFORMS or base.size not in (0, targets) or targets < 1
    if wrong:
        return Host(run, "its attributes contradict each other")
    parameters = {
        "forest": forest,
        "targets": targets,
        "function": function,
        "base": base,
        "transform": transform,
        "result": result,
    }
    return Template("tree_scores", parameters, run)


def _rounded(scores: Array, single: bool) -> Array:
    """Sums of scores, rounded to `single` precision: classes that have the same share of the trees stay equal."""
    return scores.astype(np.float32).astype(np.float64) if single else scores


@operator("TreeEnsembleRegressor", domain=DOMAIN)
class TreeEnsembleRegressor(_Named):
    """(rows, features) to (rows, n_targets): leaves' weights aggregated over the trees, plus base values.

    For one target alone a leaf has one weight, the first of several, as in onnxruntime.
    """

    aggregate_function: str = "SUM"
    n_targets: int = 1
    target_ids: tuple[int, ...] = ()
    target_nodeids: tuple[int, ...] = ()
    target_treeids: tuple[int, ...] = ()
    target_weights: tuple[float, ...] | None = None
    target_weights_as_tensor: ir.TensorProtocol | None = None

    def _trees(self) -> Forest:
        """The flat trees; ValueError where the attributes contradict each other."""
        if self.aggregate_function not in _FUNCTIONS:
            raise ValueError(f"aggregate_function '{self.aggregate_function}' is none of {', '.join(_FUNCTIONS)}")
        weights = _floats(self.target_weights, self.target_weights_as_tensor)
        trees, nodes, ids = (
            np.array(one, np.int64) for one in (self.target_treeids, self.target_nodeids, self.target_ids)
        )
        if self.n_targets == 1 and len(trees) == len(nodes) == len(ids) == len(weights):
            _, places = np.unique(np.stack([trees, nodes]), axis=1, return_index=True)
            first = np.sort(places)
            trees, nodes, ids, weights = trees[first], nodes[first], ids[first], weights[first]
        return self.forest(trees, nodes, ids, weights, self.n_targets)

    def run(self, data: Array) -> Sequence[Value]:
        scores, counts = self._trees().aggregated(self.rows(data), self.n_targets, self.aggregate_function)
        return (_regression(scores, counts, self.base(), self.post_transform).astype(np.float32),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        return _scores_kernel(
            self._trees, self.n_targets, self.aggregate_function, self.base(), self.post_transform, np.float32, self.run
        )

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [tensor(ir.DataType.FLOAT, (row_count(inputs[0]), self.n_targets))]


@operator("TreeEnsembleClassifier", domain=DOMAIN)
class TreeEnsembleClassifier(_Named):
    """(rows, features) to each row's label and scores (rows, classes), the sums of leaves' weights.

    With two classes whose weights all belong to one of them, that one's sum decides: above 0.5 where no weight is
    negative, else above 0. Where both have weights, the second one's sum decides. One class alone has one score, and
    its number as a label stands for nothing: rows have label 1 where the score is above 0, else 0. All as onnxruntime
    does.
    """

    class_ids: tuple[int, ...] = ()
    class_nodeids: tuple[int, ...] = ()
    class_treeids: tuple[int, ...] = ()
    class_weights: tuple[float, ...] | None = None
    class_weights_as_tensor: ir.TensorProtocol | None = None
    classlabels_int64s: tuple[int, ...] | None = None
    classlabels_strings: tuple[str, ...] | None = None

    def _labels(self) -> Array:
        return labels_of(self.classlabels_int64s, self.classlabels_strings)

    def _weights(self) -> Array:
        return _floats(self.class_weights, self.class_weights_as_tensor)

    def _trees(self) -> Forest:
        """The flat trees; ValueError where the attributes contradict each other."""
        classes = len(self._labels())
        if not classes:
            raise ValueError("one of classlabels_int64s and classlabels_strings must be given")
        return self.forest(self.class_treeids, self.class_nodeids, self.class_ids, self._weights(), classes)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if self.classlabels_strings:
            return Host(self.run, "its labels are strings, which are Python objects")
        if self.post_transform not in TRANSFORMS:
            return Host(self.run, "its attributes contradict each other")
        parameters = {
            "forest": self._trees,
            "base": self.base(),
            "labels": self._labels(),
            "transform": self.post_transform,
            "positive": bool((self._weights() >= 0).all()),
            "scores": self.is_read(1),
        }
        return Template("tree_classes", parameters, self.run)

    def run(self, data: Array) -> Sequence[Value]:
        labels, weights, forest = self._labels(), self._weights(), self._trees()
        classes = len(labels)
        scores, counts = forest.aggregated(self.rows(data), classes, "SUM")
        base = self.base()
        if base.size > classes:
            raise ValueError(f"base_values has {base.size} entries for {classes} classes")
        single = data.dtype != np.float64
        if classes == 1:
            return self._one_class(_rounded(scores + base if base.size else scores, single))
        if classes == 2:
            winners, scores = self._binary(scores, counts > 0, weights, base, single)
        else:
            scored = counts > 0
            scored[:, : base.size] = True
            scores[:, : base.size] += base
            scores = _rounded(scores, single)
            winners = np.where(scored, scores, -np.inf).argmax(axis=1) if len(scores) else np.zeros(0, np.int64)
            scores = transformed(scores, self.post_transform)
        return labels[winners], scores.astype(np.float32)

    def _one_class(self, scores: Array) -> tuple[Array, Array]:
        if self.classlabels_strings:
            raise ValueError("classlabels_strings holds one label, where rows have one of two")
        labels = (scores[:, 0] > 0).astype(np.int64)
        return labels, (probit(scores) if self.post_transform == "PROBIT" else scores).astype(np.float32)

    def _binary(self, scores: Array, scored: Array, weights: Array, base: Array, single: bool) -> tuple[Array, Array]:
        """The number of each row's class, and two scores."""
        one_sided = len(set(self.class_ids)) == 1
        positive = bool((weights >= 0).all())
        first, second = scores[:, 0], scores[:, 1]
        both = scored[:, 1]
        if base.size == 2:
            # onnxruntime adds the second base value to the first class's sum where the second class has one.
            sums = first + base[1]
            first, second = np.where(both, -sums, first + base[0]), np.where(both, sums, second)
            pair = np.ones(len(first), bool)
        else:
            first = first + base[0] if base.size else first
            pair = both
        # A class that no leaf of the row has a weight for counts 0, whatever its base value.
        scores = np.where(scored, _rounded(np.stack([first, second], axis=1), single), 0)
        winners = np.where(both, scores[:, 1], scores[:, 0]) > (0.5 if one_sided and positive else 0)
        if scores.size:
            alone = self._alone(scores[:, 0], one_sided, positive)
            scores = np.where(pair[:, None], transformed(scores, self.post_transform), alone)
        return winners.astype(np.int64), scores

    def _alone(self, score: Array, one_sided: bool, positive: bool) -> Array:
        """Two scores from one class's sum; onnxruntime leaves the second one unset where this gives 0."""
        if self.post_transform == "PROBIT":
            return np.stack([probit(score), np.zeros_like(score)], axis=1)
        if not one_sided and self.base().size:
            return np.stack([score, np.zeros_like(score)], axis=1)
        if self.post_transform == "LOGISTIC":
            return np.stack([logistic(-score), logistic(score)], axis=1)
        return np.stack([1 - score if one_sided and positive else -score, score], axis=1)

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        rows = row_count(inputs[0])
        kind = ir.DataType.STRING if self.classlabels_strings else ir.DataType.INT64
        count = len(self.classlabels_strings or self.classlabels_int64s or ())
        return [tensor(kind, (rows,)), tensor(ir.DataType.FLOAT, (rows, count))]


@operator("TreeEnsemble", domain=DOMAIN, since=5)
class TreeEnsemble(Operator):
    """(rows, features) to (rows, n_targets), by trees whose leaves are tables of their own.

    A membership branch holds where the feature equals one of its values; it is walked as a chain of comparisons.
    """

    host_reason = "these trees have no native walk; NumPy walks many rows at once"
    aggregate_function: int = 1
    leaf_targetids: tuple[int, ...]
    leaf_weights: ir.TensorProtocol
    membership_values: ir.TensorProtocol | None = None
    n_targets: int = 1
    nodes_falseleafs: tuple[int, ...]
    nodes_falsenodeids: tuple[int, ...]
    nodes_featureids: tuple[int, ...]
    nodes_missing_value_tracks_true: tuple[int, ...] | None = None
    nodes_modes: ir.TensorProtocol
    nodes_splits: ir.TensorProtocol
    nodes_trueleafs: tuple[int, ...]
    nodes_truenodeids: tuple[int, ...]
    post_transform: int = 0
    tree_roots: tuple[int, ...]
    _forest: Forest | None = None

    def run(self, data: Array) -> Sequence[Value]:
        if not 0 <= self.aggregate_function < len(_FUNCTIONS):
            raise ValueError(f"aggregate_function must lie in [0, 3], not {self.aggregate_function}")
        if not 0 <= self.post_transform < len(TRANSFORMS):
            raise ValueError(f"post_transform must lie in [0, 4], not {self.post_transform}")
        function, transform = _FUNCTIONS[self.aggregate_function], TRANSFORMS[self.post_transform]
        scores, counts = self._trees().aggregated(rows_of(data), self.n_targets, function)
        return (_regression(scores, counts, np.zeros(0), transform).astype(data.dtype),)

    def lower(self, inputs: Sequence[np.dtype[Any] | None]) -> Kernel:
        if not (0 <= self.aggregate_function < len(_FUNCTIONS) and 0 <= self.post_transform < len(TRANSFORMS)):
            return Host(self.run, "its attributes contradict each other")
        function, transform = _FUNCTIONS[self.aggregate_function], TRANSFORMS[self.post_transform]
        return _scores_kernel(self._trees, self.n_targets, function, np.zeros(0), transform, None, self.run)

    def _trees(self) -> Forest:
        """The flat trees, made when they are first needed; ValueError where the attributes contradict each other."""
        if self._forest is None:
            self._forest = self._flat()
        return self._forest

    def _flat(self) -> Forest:
        """Branches first, then the leaves, then the links of membership chains."""
        modes = np.asarray(self.nodes_modes.numpy()).reshape(-1).astype(np.int64)
        splits = np.asarray(self.nodes_splits.numpy()).reshape(-1)
        weights = np.asarray(self.leaf_weights.numpy()).reshape(-1)
        count, leaf_count = len(modes), len(weights)
        if modes.size and not (modes.min() >= 0 and modes.max() <= _MEMBER):
            raise ValueError("nodes_modes must lie in [0, 6]")
        if any(
            len(given) != count
            for given in (splits, self.nodes_featureids, self.nodes_truenodeids, self.nodes_falsenodeids,
                          self.nodes_trueleafs, self.nodes_falseleafs)
        ):  # fmt: skip
            raise ValueError(f"the lists of nodes must all have {count} entries, as nodes_modes has")
        children = []
        for ids, leafs in (
            (self.nodes_falsenodeids, self.nodes_falseleafs),
            (self.nodes_truenodeids, self.nodes_trueleafs),
        ):
            place, leaf = np.array(ids, np.int64), np.array(leafs, bool)
            if place.size and not ((place >= 0) & (place < np.where(leaf, leaf_count, count))).all():
                raise ValueError("a branch names a node or a leaf that does not exist")
            children.append(np.where(leaf, place + count, place))
        no, yes = children
        missing = np.array(self.nodes_missing_value_tracks_true or [0] * count, bool)
        blank = np.zeros(leaf_count, np.int64)
        ends = np.arange(count, count + leaf_count)
        mode = np.concatenate([modes, blank + LEAF])
        feature = np.concatenate([np.array(self.nodes_featureids, np.int64), blank])
        value = np.concatenate([splits, blank.astype(splits.dtype)])
        missing = np.concatenate([missing, blank.astype(bool)])
        table = np.stack([np.concatenate([no, ends]), np.concatenate([yes, ends])], axis=1)
        parts = self._chains(mode, feature, value, missing, table)
        leaves = leaves_of(len(parts[0]), ends, np.array(self.leaf_targetids, np.int64), weights, self.n_targets)
        roots = np.array(self.tree_roots, np.int64)
        return Forest(roots, parts[0], parts[1], parts[2], parts[3], parts[4].reshape(-1), leaves)

    def _chains(self, mode: Array, feature: Array, value: Array, missing: Array, table: Array) -> list[Array]:
        """The node lists with each membership branch as comparisons with its values, one behind the other."""
        members = np.nonzero(mode == _MEMBER)[0]
        sets: list[list[Any]] = [[]]
        values = () if self.membership_values is None else np.asarray(self.membership_values.numpy()).reshape(-1)
        for item in values:
            if np.isnan(item):
                sets.append([])
            else:
                sets[-1].append(item)
        if len(members) != len(sets) - 1:
            raise ValueError(f"membership_values holds {len(sets) - 1} sets for {len(members)} membership branches")
        added: list[tuple[int, Any, Any]] = []  # the branch that a link belongs to, its value, its false child
        mode, value, table = mode.copy(), value.copy(), table.copy()
        mode[members] = MODES.index("BRANCH_EQ")
        for node, items in zip(members.tolist(), sets, strict=False):
            # An empty set holds nothing: NaN equals no value.
            value[node] = items[0] if items else np.nan
            otherwise = table[node, 0]
            for rank, item in enumerate(items[1:], 1):
                link = len(mode) + len(added)
                if rank == 1:
                    table[node, 0] = link
                added.append((node, item, otherwise if rank == len(items) - 1 else link + 1))
        if not added:
            return [mode, feature, value, missing, table]
        owner = np.array([link[0] for link in added])
        links = np.stack([np.array([link[2] for link in added], np.int64), table[owner, 1]], axis=1)
        return [
            np.concatenate([mode, mode[owner]]),
            np.concatenate([feature, feature[owner]]),
            np.concatenate([value, np.array([link[1] for link in added], value.dtype)]),
            np.concatenate([missing, missing[owner]]),
            np.concatenate([table, links]),
        ]

    def infer(self, inputs: Sequence[Fact | None], inference: Inference) -> Sequence[Fact]:
        return [Fact((inputs[0] or UNKNOWN).type, (row_count(inputs[0]), self.n_targets))]
