"""Small encoders and decoders for the operators of text generation, with the contracts of T5 and Whisper."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, SIZE = 2, 3
WIDTH = HEADS * SIZE
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
INTEGERS = {"split": [0, 0, 2, HEADS, SIZE], "length": [2], "join": [0, 1, WIDTH], "last": [-1], "two": [0], "mid": [2]}


class Layer:
    """One decoder layer whose logits depend on its token, on all tokens before, and on the whole source."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        generator = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self.tables = {
            name: generator.standard_normal(shape).astype(np.float32)
            for name, shape in {
                "words": (vocabulary, vocabulary),
                "memory": (vocabulary, 2 * WIDTH),
                "source": (vocabulary, 2 * WIDTH),
                "mix": (WIDTH, vocabulary),
                "mix_cross": (WIDTH, vocabulary),
                "features": (4, 2 * WIDTH),
            }.items()
        }

    def states(self, ids: str, table: str, key: str, value: str) -> list[onnx.NodeProto]:
        """A key and a value (batch, heads, length, size) of each token."""
        return [helper.make_node("Gather", [table, ids], [f"{key}_flat"]), *self.split(f"{key}_flat", key, value)]

    def split(self, flat: str, key: str, value: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("Reshape", [flat, "split"], [f"{key}_parts"]),
            helper.make_node("Transpose", [f"{key}_parts"], [f"{key}_both"], perm=[2, 0, 3, 1, 4]),
            helper.make_node("Gather", [f"{key}_both", "zero_index"], [key], axis=0),
            helper.make_node("Gather", [f"{key}_both", "one_index"], [value], axis=0),
        ]

    def mixed(self, key: str, value: str, matrix: str, result: str) -> list[onnx.NodeProto]:
        return [
            helper.make_node("Tanh", [key], [f"{result}_tanh"]),
            helper.make_node("Mul", [f"{result}_tanh", value], [f"{result}_product"]),
            helper.make_node("ReduceSum", [f"{result}_product", "length"], [f"{result}_sum"], keepdims=0),
            helper.make_node("Reshape", [f"{result}_sum", "join"], [f"{result}_flat"]),
            helper.make_node("MatMul", [f"{result}_flat", matrix], [result]),
        ]

    def scores(self, own: tuple[str, str], cross: tuple[str, str]) -> list[onnx.NodeProto]:
        return [
            *self.mixed(*own, "mix", "of_own"),
            *self.mixed(*cross, "mix_cross", "of_cross"),
            helper.make_node("Gather", ["words", "last_ids"], ["word"]),
            helper.make_node("Add", ["word", "of_own"], ["partial"]),
            helper.make_node("Add", ["partial", "of_cross"], ["logits"]),
        ]

    def graph(
        self,
        name: str,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> onnx.GraphProto:
        used = {value for node in nodes for value in node.input}
        scalars = {"zero_index": np.array(0, np.int64), "one_index": np.array(1, np.int64)}
        constants = {**self.tables, **scalars, **{key: np.array(value, np.int64) for key, value in INTEGERS.items()}}
        return helper.make_graph(
            nodes,
            name,
            inputs,
            outputs,
            [numpy_helper.from_array(array, key) for key, array in constants.items() if key in used],
        )

    def logits(self) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info("logits", FLOAT, ["batch", 1, self.vocabulary])

    def encoder(self, *, whisper: bool = False, with_decoder: bool = True) -> onnx.GraphProto:
        """The encoder; `with_decoder` makes it run the decoder on its first tokens, too."""
        cross = ("present_key_cross_0", "present_value_cross_0")
        own = ("present_key_self_0", "present_value_self_0")
        if whisper:
            inputs = [helper.make_tensor_value_info("encoder_input_ids", FLOAT, ["batch", 4, "frames"])]
            nodes = [
                helper.make_node("Transpose", ["encoder_input_ids"], ["frames_first"], perm=[0, 2, 1]),
                helper.make_node("MatMul", ["frames_first", "features"], ["encoder_hidden_states"]),
                *self.split("encoder_hidden_states", *cross),
            ]
        else:
            inputs = [
                helper.make_tensor_value_info("encoder_input_ids", INT32, ["batch", "source"]),
                helper.make_tensor_value_info("encoder_attention_mask", INT32, ["batch", "source"]),
            ]
            nodes = [
                helper.make_node("Gather", ["source", "encoder_input_ids"], ["plain"]),
                helper.make_node("Cast", ["encoder_attention_mask"], ["visible"], to=FLOAT),
                helper.make_node("Unsqueeze", ["visible", "mid"], ["visible3"]),
                helper.make_node("Mul", ["plain", "visible3"], ["encoder_hidden_states"]),
                *self.split("encoder_hidden_states", *cross),
            ]
        outputs = [state(name) for name in cross]
        if with_decoder:
            inputs.append(helper.make_tensor_value_info("decoder_input_ids", INT32, ["batch", "start"]))
            nodes += [
                helper.make_node("Gather", ["decoder_input_ids", "last"], ["last_ids"], axis=1),
                *self.states("decoder_input_ids", "memory", *own),
                *self.scores(own, cross),
            ]
            hidden = helper.make_tensor_value_info("encoder_hidden_states", FLOAT, ["batch", "source", 2 * WIDTH])
            outputs = [self.logits(), hidden, *[state(name) for name in own], *outputs]
        return self.graph("encoder", nodes, inputs, outputs)

    def decoder(self, *, whisper: bool = False, hidden: bool = True, whole: bool = False) -> onnx.GraphProto:
        """The decoder of one token, or with `whole` of the last token of the whole sequence."""
        inputs = [helper.make_tensor_value_info("input_ids", INT32, ["batch", "all"] if whole else ["batch", 1])]
        nodes = [
            helper.make_node("Gather", ["input_ids", "last"], ["last_ids"], axis=1),
            *self.states("last_ids", "memory", "new_key", "new_value"),
            helper.make_node("Concat", ["past_key_self_0", "new_key"], ["present_key_self_0"], axis=2),
            helper.make_node("Concat", ["past_value_self_0", "new_value"], ["present_value_self_0"], axis=2),
        ]
        if not whisper:
            inputs.append(helper.make_tensor_value_info("encoder_attention_mask", INT32, ["batch", "source"]))
        if hidden:
            shape = ["batch", "source", 2 * WIDTH]
            inputs.append(helper.make_tensor_value_info("encoder_hidden_states", FLOAT, shape))
        kinds = ("key_self", "value_self", "key_cross", "value_cross")
        inputs += [state(f"past_{kind}_0") for kind in kinds]
        own = ("present_key_self_0", "present_value_self_0")
        nodes += self.scores(own, ("past_key_cross_0", "past_value_cross_0"))
        return self.graph("decoder", nodes, inputs, [self.logits(), *[state(name) for name in own]])


def state(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, ["batch", HEADS, f"{name}_length", SIZE])
