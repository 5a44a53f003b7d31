"""Attention over caches of one capacity: new rows are written at the end of what is filled, and no more is read."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.ops.framework.facts import same
from sardonyx.passes.caches.lengths import NAME, PAST_LENGTH
from sardonyx.passes.caches.pairs import DeclinedError
from sardonyx.passes.caches.walk import Walk, named
from sardonyx.passes.rule import stamp

# The opset that has TensorScatter, and Attention with the number of keys of each entry.
VERSION = 24

_SPLIT = (0, 2, 1, 3)


class Attending:
    """The rules for what appends to caches and what reads them, of a walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def node(self, node: ir.Node) -> bool:
        """Take a node of attention, or one that appends to a cache; False for any other one."""
        kind = node.domain, node.op_type
        if kind == ("", "Concat"):
            return self._concat(node)
        if kind == ("com.microsoft", "MultiHeadAttention"):
            return self._multi_head(node)
        if kind == ("", "Attention"):
            return self._attention(node)
        return False

    def _concat(self, node: ir.Node) -> bool:
        past = node.inputs[0]
        if past not in self.walk.pasts:
            return False
        rank = self.walk.fact(past).rank
        new = node.inputs[1]
        if rank is None or len(node.inputs) != 2 or new is None:
            raise DeclinedError(f"{named(node)} appends more than one value to a cache")
        axis = node.attributes["axis"].as_int() % rank
        self._append(node, past, new, node.outputs[0], axis)
        self.walk.graph.remove(node, safe=True)
        return True

    def _append(self, node: ir.Node, past: ir.Value | None, new: ir.Value, present: ir.Value, axis: int) -> ir.Value:
        """Write new rows into a cache; the cache with them, which takes the place of `present`."""
        walk = self.walk
        assert past is not None
        shape = walk.fact(new).shape
        if shape is None or not same(shape[axis], walk.sizes.new):
            raise DeclinedError(f"{named(node)} appends another number of rows than others do")
        batches = [one.shape[0] for one in map(walk.fact, (past, new)) if one.shape is not None]
        if len(batches) != 2 or not same(*batches):
            raise DeclinedError(f"{named(node)} appends to a cache of another batch")
        scatter = walk.nodes.make("TensorScatter", [past, new, walk.lengths.starts], {"axis": axis}, version=VERSION)
        # What an error calls it: a step that does not fit is the caller's, who knows these names.
        scatter.name = f"{past.name} from {PAST_LENGTH} on"
        result = scatter.outputs[0]
        walk.inference.facts[result] = walk.fact(present)
        walk.long[result] = (axis,)
        walk.written[past] = result
        self._put(node, [scatter])
        result.type, name = present.type, present.name
        ir.convenience.replace_all_uses_with(present, result, replace_graph_outputs=True)
        present.name, result.name = None, name
        return result

    def _put(self, node: ir.Node, made: Sequence[ir.Node]) -> None:
        stamp(made, NAME, [node])
        self.walk.graph.insert_before(node, made)

    def _multi_head(self, node: ir.Node) -> bool:
        """com.microsoft's MultiHeadAttention; keys and values of other lengths than that of the caches stay."""
        walk = self.walk
        inputs = [*node.inputs, *[None] * (10 - len(node.inputs))]
        query, key, value, bias, padding, added, past_key, past_value = inputs[:8]
        has_past = past_key in walk.pasts or past_value in walk.pasts
        if not has_past and not any(item in walk.long for item in (key, value)):
            return False
        if has_past and not (past_key in walk.pasts and past_value in walk.pasts):
            raise DeclinedError(f"{named(node)} appends to a past that is no cache")
        if bias is not None or padding is not None or any(inputs[8:]) or _has(node, 3):
            raise DeclinedError(f"{named(node)} has a bias, a padding mask or its scores as an output")
        if any(walk.fact(one).rank != 3 for one in (query,)) or key is None or value is None or query is None:
            raise DeclinedError(f"{named(node)} has packed operands")
        heads = node.attributes["num_heads"].as_int()
        made: list[ir.Node] = []
        if has_past:
            if walk.fact(key).rank != 3 or walk.fact(value).rank != 3:
                raise DeclinedError(f"{named(node)} has packed operands")
            key, value = (self._heads(one, heads, made) for one in (key, value))
        query = self._heads(query, heads, made)
        self._put(node, made)
        if has_past:
            key = self._append(node, past_key, key, node.outputs[1], 2)
            value = self._append(node, past_value, value, node.outputs[2], 2)
        causal = node.attributes.get("unidirectional")
        is_causal = causal is not None and causal.as_int() != 0
        if is_causal and not has_past:
            raise DeclinedError(f"{named(node)} counts queries from the first key, not from the end of the past")
        attributes: dict[str, float | int] = {}
        scale = node.attributes.get("scale")
        if scale is not None and scale.as_float() != 0:
            attributes["scale"] = scale.as_float()
        if is_causal:
            attributes["is_causal"] = 1
        attention = self._attend(node, query, key, value, added, attributes)
        self._merge(node, attention)
        return True

    def _heads(self, rows: ir.Value, heads: int, made: list[ir.Node]) -> ir.Value:
        """(batch, length, heads * size) as (batch, heads, length, size)."""
        nodes, fact = self.walk.nodes, self.walk.fact(rows)
        assert fact.shape is not None
        width = fact.shape[2]
        if not isinstance(width, int) or width % heads:
            raise DeclinedError(f"a value of {width} channels does not divide into {heads} heads")
        split = nodes.reshaped(rows, [0, 0, heads, width // heads])
        turned = nodes.make("Transpose", [split.outputs[0]], {"perm": _SPLIT})
        made += [split, turned]
        shape = (fact.shape[0], heads, fact.shape[1], width // heads)
        self.walk.inference.facts[turned.outputs[0]] = type(fact)(fact.type, shape)
        return turned.outputs[0]

    def _attend(
        self,
        node: ir.Node,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        mask: ir.Value | None,
        attributes: dict[str, float | int],
    ) -> ir.Value:
        """The heads of the result of attention over what is filled."""
        if query in self.walk.long:
            raise DeclinedError(f"{named(node)} has a query for each position of the cache")
        if mask is not None and self.walk.fact(mask).shape is None:
            raise DeclinedError(f"the shape of the mask of {named(node)} is not known")
        lengths = self.walk.lengths
        inputs = [query, key, value, mask, None, None, lengths.ends]
        attention = self.walk.nodes.make("Attention", inputs, attributes, version=VERSION)
        attention.name = node.name or attention.name
        self._put(node, [attention])
        return attention.outputs[0]

    def _merge(self, node: ir.Node, heads: ir.Value) -> None:
        """Let heads, taken together, be the first result of a node, which goes."""
        nodes = self.walk.nodes
        turned = nodes.make("Transpose", [heads], {"perm": _SPLIT})
        merged = nodes.reshaped(turned.outputs[0], [0, 0, -1])
        self._put(node, [turned, merged])
        self._finish(node, merged.outputs[0])

    def _finish(self, node: ir.Node, result: ir.Value) -> None:
        old = node.outputs[0]
        self.walk.inference.facts[result] = self.walk.fact(old)
        if old.is_graph_output():
            old.name, result.name = None, old.name
        ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        self.walk.graph.remove(node, safe=True)

    def _attention(self, node: ir.Node) -> bool:
        """ONNX's Attention."""
        walk = self.walk
        inputs = [*node.inputs, *[None] * (7 - len(node.inputs))]
        query, key, value, mask, past_key, past_value, ends = inputs[:7]
        has_past = past_key in walk.pasts or past_value in walk.pasts
        if not has_past and not any(item in walk.long for item in (key, value)):
            return False
        if (past_key in walk.pasts) != (past_value in walk.pasts) or (not has_past and past_key is not None):
            raise DeclinedError(f"{named(node)} appends to a past that is no cache")
        if ends is not None or _has(node, 3):
            raise DeclinedError(f"{named(node)} has a number of keys, or its scores as an output")
        assert query is not None
        assert key is not None
        assert value is not None
        ranks = [walk.fact(one).rank for one in (query, key, value)]
        if ranks not in ([3, 3, 3], [4, 4, 4]):
            raise DeclinedError(f"the ranks of the operands of {named(node)} are {ranks}")
        if not has_past and ranks[0] == 3:
            raise DeclinedError(f"{named(node)} reads a cache that is not split into heads")
        attributes = {
            name: attribute.value
            for name, attribute in node.attributes.items()
            if name not in ("q_num_heads", "kv_num_heads", "qk_matmul_output_mode")
        }
        windows = [attributes.get(name, -1) for name in ("left_window_size", "right_window_size")]
        if not has_past and (attributes.get("is_causal") or max(windows) >= 0):
            raise DeclinedError(f"{named(node)} counts queries from the first key, not from the end of the past")
        made: list[ir.Node] = []
        if ranks[0] == 3:
            counts = [node.attributes[name].as_int() for name in ("q_num_heads", "kv_num_heads")]
            query = self._heads(query, counts[0], made)
            key, value = (self._heads(one, counts[1], made) for one in (key, value))
        self._put(node, made)
        if has_past:
            key = self._append(node, past_key, key, node.outputs[1], 2)
            value = self._append(node, past_value, value, node.outputs[2], 2)
        heads = self._attend(node, query, key, value, mask, attributes)
        if ranks[0] == 3:
            self._merge(node, heads)
        else:
            self._finish(node, heads)
        return True


def _has(node: ir.Node, place: int) -> bool:
    """Whether an output of a node is given and read."""
    return len(node.outputs) > place and bool(node.outputs[place].name) and bool(node.outputs[place].uses())
