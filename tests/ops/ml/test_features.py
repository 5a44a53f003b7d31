"""Features prepared for models, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peer import compare, ours

DOMAIN = "ai.onnx.ml"
RNG = np.random.default_rng(21)
TEXT = np.array([["a"], ["b"], ["z"]], object)
NUMBERS = np.array([1, 2, 5])


@pytest.mark.parametrize(
    ("data", "attributes"),
    [
        (TEXT, {"keys_strings": ["a", "b"], "values_int64s": [1, 2]}),
        (TEXT, {"keys_strings": ["a", "b"], "values_floats": [1.0, 2.0], "default_float": 9.0}),
        (TEXT, {"keys_strings": ["a", "b"], "values_strings": ["q", "r"]}),
        (NUMBERS, {"keys_int64s": [1, 2], "values_strings": ["q", "r"], "default_string": "none"}),
        (NUMBERS, {"keys_int64s": [1, 2], "values_floats": [0.5, 0.75]}),
        (np.array([1, np.nan], np.float32), {"keys_floats": [1.0, float("nan")], "values_strings": ["q", "r"]}),
    ],
)
@pytest.mark.parametrize("version", [2, 4])
def test_label_encoder(data: Any, attributes: dict[str, Any], version: int) -> None:
    compare("LabelEncoder", [data], domain=DOMAIN, version=version, **attributes)


@pytest.mark.parametrize("data", [np.array(["a", "z"], object), np.array([0, 1, 7])])
def test_label_encoder_by_places(data: Any) -> None:
    compare("LabelEncoder", [data], domain=DOMAIN, version=1, classes_strings=["a", "b"])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_normalizer(norm: str, dtype: Any) -> None:
    data = (RNG.normal(size=(3, 4)) * 3).astype(dtype)
    compare("Normalizer", [data], domain=DOMAIN, norm=norm)
    compare("Normalizer", [data[0]], domain=DOMAIN, norm=norm)
    compare("Normalizer", [np.zeros_like(data)], domain=DOMAIN, norm=norm)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_scaler(dtype: Any) -> None:
    data = (RNG.normal(size=(3, 2)) * 3).astype(dtype)
    compare("Scaler", [data], domain=DOMAIN, offset=[1.0, 2.0], scale=[0.5, 2.0])
    compare("Scaler", [data], domain=DOMAIN, offset=[1.0], scale=[0.5])
    with pytest.raises(errors.OnnxRuntimeError, match="offset and scale"):
        ours("Scaler", [data], domain=DOMAIN, offset=[1.0] * 3, scale=[1.0] * 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize("widths", [[3, 2], [2, 4]])
def test_feature_vectorizer(dtype: Any, widths: list[int]) -> None:
    first, second = (RNG.normal(size=(2, count)) * 9 for count in (3, 2))
    inputs = [first.astype(dtype), second.astype(dtype)]
    compare("FeatureVectorizer", inputs, domain=DOMAIN, inputdimensions=widths)
    compare("FeatureVectorizer", [data[0] for data in inputs], domain=DOMAIN, inputdimensions=widths)
    (found,) = ours("FeatureVectorizer", [data[:0] for data in inputs], domain=DOMAIN, inputdimensions=widths)
    assert found.shape == (0, sum(widths))


@pytest.mark.parametrize("width", [2, 6, 7])
def test_feature_vectorizer_of_more_dimensions(width: int) -> None:
    compare("FeatureVectorizer", [np.arange(12).reshape(2, 3, 2)], domain=DOMAIN, inputdimensions=[width])


def test_feature_vectorizer_that_does_not_fit() -> None:
    data = np.arange(6).reshape(2, 3)
    with pytest.raises(errors.OnnxRuntimeError, match="same number of rows"):
        ours("FeatureVectorizer", [data, data[0]], domain=DOMAIN, inputdimensions=[3, 3])
    with pytest.raises(errors.OnnxRuntimeError, match="inputdimensions has 1 entries for 2 inputs"):
        ours("FeatureVectorizer", [data, data], domain=DOMAIN, inputdimensions=[3])


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64])
def test_one_hot_rows_of_numbers(dtype: Any) -> None:
    numbers = np.array([[3, 7, 3], [5, -2, 3]], dtype)
    compare("OneHotEncoder", [numbers], domain=DOMAIN, cats_int64s=[5, 3, 9])
    compare("OneHotEncoder", [numbers], domain=DOMAIN, cats_int64s=[3, 5, 3, 7, -2], zeros=0)
    compare("OneHotEncoder", [numbers], domain=DOMAIN, cats_int64s=list(range(-2, 300)))
    with pytest.raises(errors.OnnxRuntimeError, match="no category"):
        ours("OneHotEncoder", [numbers], domain=DOMAIN, cats_int64s=[3, 5], zeros=0)


@pytest.mark.parametrize("version", [1, 3])
def test_one_hot_rows_of_texts(version: int) -> None:
    texts = np.array([["b", "z"], ["a", ""], ["c", "a"]], object)
    compare("OneHotEncoder", [texts], domain=DOMAIN, version=version, cats_strings=["a", "b", "c"])
    compare("OneHotEncoder", [texts[:0]], domain=DOMAIN, version=version, cats_strings=["a", "b", "c"])
    many = [f"{place}" for place in range(300)]
    compare("OneHotEncoder", [np.array([["7", "a"], ["299", "0"]], object)], domain=DOMAIN, cats_strings=many)
    known = {"domain": DOMAIN, "version": version, "zeros": 0}
    compare("OneHotEncoder", [texts[:, :1]], **known, cats_strings=["a", "b", "c"])
    compare("OneHotEncoder", [texts[:2, :1]], **known, cats_strings=["a", "b", "a"])
    with pytest.raises(errors.OnnxRuntimeError, match="no category"):
        ours("OneHotEncoder", [texts], **known, cats_strings=["a", "b", "c"])
