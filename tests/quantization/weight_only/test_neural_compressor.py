"""`rtn_quantize` and `gptq_quantize`."""

import numpy as np
import pytest

from sardonyx.quantization.neural_compressor import gptq_quantize, rtn_quantize
from sardonyx.quantization.refusal import InvalidQuantization
from tests.quantization.weight_only.models import N, attributes_of, constants_of, model_of, product_weight, value


def two_products():
    rng = np.random.default_rng(0)
    nodes = [N("MatMul", ["x", "w"], ["h"], name="first"), N("MatMul", ["h", "v"], ["y"], name="second")]
    constants = {"w": rng.standard_normal((48, 32)).astype(np.float32)}
    constants["v"] = rng.standard_normal((32, 16)).astype(np.float32)
    return model_of(nodes, [value("x", ["n", 48])], constants)


@pytest.mark.parametrize("algorithm", ["rtn", "k_quant"])
def test_single_nodes(algorithm):
    model = two_products()
    own = {"first": {"bits": 8, "group_size": 16, "scheme": "sym"}}
    found = rtn_quantize(model, own, algorithm=algorithm, accuracy_level=4).model
    assert [node.op_type for node in model.graph.node] == ["MatMul"] * 2  # the model that is passed stays
    first, second = (attributes_of(node) for node in found.graph.node)
    assert (first["bits"], first["block_size"], second["bits"], second["block_size"]) == (8, 16, 4, 32)
    assert first["accuracy_level"] == second["accuracy_level"] == 4
    off = product_weight(found) - constants_of(model)["w"]
    assert np.abs(off).max() < 0.05


def test_nodes_that_stay_and_one_scale_a_column():
    found = rtn_quantize(two_products(), {"first": "fp32"}, group_size=-1).model
    assert [node.op_type for node in found.graph.node] == ["MatMul", "MatMulNBits"]
    assert "accuracy_level" not in attributes_of(found.graph.node[1])


def test_gptq():
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((5, 48))
    feeds = [{"x": (rng.standard_normal((16, 5)) @ mixing).astype(np.float32)} for _ in range(8)]
    x = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    model = two_products()
    weight = constants_of(model)["w"]

    def error(found):
        return np.square(x @ (product_weight(found.model) - weight)).mean()

    nearest = error(rtn_quantize(model, algorithm="rtn"))
    for data in (feeds, [(feed, 0) for feed in feeds]):
        assert error(gptq_quantize(model, data)) < 0.2 * nearest
    assert error(gptq_quantize(model, iter(feeds), n_samples=4, actorder=True)) < 0.5 * nearest


def test_what_is_refused():
    with pytest.raises(InvalidQuantization, match="algorithm must be 'k_quant' or 'rtn'"):
        rtn_quantize(two_products(), algorithm="best")
    with pytest.raises(InvalidQuantization, match="scheme must be"):
        rtn_quantize(two_products(), scheme="half")
    with pytest.raises(InvalidQuantization, match="bits must be 2, 4 or 8"):
        rtn_quantize(two_products(), num_bits=3)
    with pytest.raises(InvalidQuantization, match="gives no data"):
        gptq_quantize(two_products(), [])
