"""Extra options: each key, its type, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sardonyx.quantization.options import Options
from sardonyx.quantization.refusal import InvalidQuantization


def test_defaults() -> None:
    options = Options.parse(None)
    assert options == Options.parse({}) == Options()
    assert options.quantize_bias
    assert options.matmul_const_b_only is None
    assert options.weight_symmetric is None
    assert options.is_weight_symmetric(signed=True)
    assert not options.is_weight_symmetric(signed=False)


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("ActivationSymmetric", "activation_symmetric", True),
        ("ActivationRestrictedAsymmetric", "activation_restricted_asymmetric", True),
        ("WeightSymmetric", "weight_symmetric", False),
        ("EnableSubgraph", "enable_subgraph", True),
        ("ForceQuantizeNoInputCheck", "force_quantize_no_input_check", True),
        ("MatMulConstBOnly", "matmul_const_b_only", False),
        ("AddQDQPairToWeight", "add_qdq_pair_to_weight", True),
        ("DedicatedQDQPair", "dedicated_qdq_pair", True),
        ("QDQKeepRemovableActivations", "qdq_keep_removable_activations", True),
        ("QDQDisableWeightAdjustForInt32Bias", "qdq_disable_weight_adjust_for_int32_bias", True),
        ("QuantizeBias", "quantize_bias", False),
        ("UseQDQContribOps", "use_qdq_contrib_ops", True),
        ("MinimumRealRange", "minimum_real_range", 0.25),
        ("QDQOpTypePerChannelSupportToAxis", "qdq_op_type_per_channel_support_to_axis", {"MatMul": 1}),
        ("TensorQuantOverrides", "tensor_quant_overrides", {"x": [{"rmin": 0.0}]}),
        ("BlockSize", "block_size", 32),
        ("extra.Sigmoid.nnapi", "sigmoid_nnapi", True),
        ("CalibPercentile", "calib_percentile", 99.9),
        ("CalibMovingAverageConstant", "calib_moving_average_constant", 0.5),
        ("CalibNumBins", "calib_num_bins", 2048),
        ("SmoothQuantAlpha", "smooth_quant_alpha", 0.75),
        ("OrtCompatible", "ort_compatible", True),
    ],
)
def test_keys(key: str, field: str, value: Any) -> None:
    options = Options.parse({key: value})
    assert getattr(options, field) == value
    assert options.given == {key}


@pytest.mark.parametrize("kind", [0, 99, True, 1.0, "FLOAT"])
def test_a_number_that_is_no_type_is_refused(kind: Any) -> None:
    assert Options.parse({"DefaultTensorType": 10}).default_tensor_type == 10
    with pytest.raises(InvalidQuantization, match=r"'DefaultTensorType'\] must be a type of onnx\.TensorProto"):
        Options.parse({"DefaultTensorType": kind})


def test_axes_of_operators_that_do_not_exist_are_refused() -> None:
    known = {"MatMul": 1, "FusedMatMul": 1}
    assert Options.parse({"QDQOpTypePerChannelSupportToAxis": known}).qdq_op_type_per_channel_support_to_axis == known
    with pytest.raises(InvalidQuantization, match=r"names of operators of ONNX or com\.microsoft"):
        Options.parse({"QDQOpTypePerChannelSupportToAxis": {"Matmul": 1}})


def test_lists_of_operators() -> None:
    options = Options.parse({"OpTypesToExcludeOutputQuantization": ["MatMul", "Conv"]})
    assert options.op_types_to_exclude_output_quantization == ("MatMul", "Conv")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("ActivationSymetric", "ActivationSymmetric"),
        ("matmulconstbonly", "MatMulConstBOnly"),
        ("WeightSymmetrical", "WeightSymmetric"),
        ("TensorQuantOverride", "TensorQuantOverrides"),
    ],
)
def test_unknown_key_names_the_nearest_one(key: str, nearest: str) -> None:
    with pytest.raises(InvalidQuantization, match=f"no option '{key}'; did you mean '{nearest}'"):
        Options.parse({key: True})


def test_unknown_key_that_is_near_none_lists_them() -> None:
    with pytest.raises(InvalidQuantization, match="no option 'zzzz'; the options are ActivationRestrictedAsymmetric, "):
        Options.parse({"zzzz": 1})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ActivationSymmetric", "yes"),
        ("WeightSymmetric", 2),
        ("BlockSize", -1),
        ("BlockSize", 1.5),
        ("MinimumRealRange", 0),
        ("MinimumRealRange", float("nan")),
        ("CalibPercentile", 101),
        ("CalibNumBins", 1),
        ("CalibNumBins", 1_000_000_000),
        ("CalibNumQuantizedBins", 1_000_000),
        ("TensorQuantOverrides", []),
        ("OpTypesToExcludeOutputQuantization", "MatMul"),
        ("QDQOpTypePerChannelSupportToAxis", {"MatMul": "last"}),
    ],
)
def test_wrong_values(key: str, value: Any) -> None:
    with pytest.raises(InvalidQuantization, match=f"extra_options\\['{key}'\\] must be"):
        Options.parse({key: value})


def test_options_that_are_no_dictionary() -> None:
    with pytest.raises(ValueError, match="extra_options must be a dict"):
        Options.parse(["ActivationSymmetric"])  # type: ignore[arg-type]
