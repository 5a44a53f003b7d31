"""SmoothQuant: the float model computes the same, its activations are easier to quantise."""

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.graph.load import load_model
from sardonyx.graph.saving import to_message
from sardonyx.quantization import QuantType, quantize_static
from sardonyx.quantization.calibration.readers import IterableReader
from sardonyx.quantization.options import Options
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.smooth_quant import smooth_quant, smoothed
from tests.quantization.weight_only.models import N, constants_of, model_of, value

SIZE = 32
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch):
    """The numbers of a test are its own, whichever ran before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(0))


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def block():
    """A normalisation with two readers, a bias and a Relu between products, a residual, a Mul, a Gemm."""
    scale = np.ones(SIZE, np.float32)
    scale[[3, 17]] = 80
    constants = {"g": scale, "b": floats(SIZE), "wq": floats(SIZE, SIZE), "wk": floats(SIZE, SIZE), "bk": floats(SIZE)}
    constants |= {"w1": floats(SIZE, 64), "b1": floats(64), "w2": floats(SIZE, 64), "m": floats(SIZE) + 3}
    constants |= {"w3": floats(SIZE, 8), "b3": floats(8)}
    nodes = [
        N("LayerNormalization", ["x", "g", "b"], ["l"], name="norm", axis=-1),
        N("MatMul", ["l", "wq"], ["q"], name="query"),
        N("MatMul", ["l", "wk"], ["k0"], name="key"),
        N("Add", ["k0", "bk"], ["k"], name="key_bias"),
        N("Add", ["q", "k"], ["s"], name="sum"),
        N("MatMul", ["s", "w1"], ["h0"], name="up"),
        N("Add", ["b1", "h0"], ["h1"], name="up_bias"),
        N("Relu", ["h1"], ["h2"], name="relu"),
        N("Gemm", ["h2", "w2"], ["o0"], name="down", transB=1),
        N("Add", ["o0", "x"], ["o1"], name="residual"),
        N("Mul", ["o1", "m"], ["o2"], name="scale"),
        N("Gemm", ["o2", "w3", "b3"], ["y"], name="head"),
    ]
    return model_of(nodes, [value("x", ["n", SIZE])], constants)


def feeds(count=4, size=SIZE):
    return [{"x": floats(16, size)} for _ in range(count)]


def run(model, feed, *names):
    return sardonyx.InferenceSession(model.SerializeToString(), extra_outputs=names).run(names or None, feed)[0]


def operators(model):
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("folding", [True, False])
def test_the_float_model_computes_the_same(alpha, folding):
    model, data = block(), feeds()
    before = model.SerializeToString()
    changed = smooth_quant(model, data, alpha, folding)
    assert model.SerializeToString() == before
    onnx.checker.check_model(changed)
    # Of the four values that products read, the sum is made by no constant, and only that needs a Mul with folding.
    assert operators(changed).count("Mul") == 1 + (1 if folding else 4)
    for feed in (data[0], feeds(1)[0]):
        wanted = run(model, feed).astype(np.float64)
        np.testing.assert_allclose(run(changed, feed), wanted, atol=2e-6 * np.abs(wanted).max())


def test_outliers_of_activations_become_smaller():
    model, data = block(), feeds()
    changed = smooth_quant(model, data)
    spread = [
        (largest := np.abs(run(each, data[0], "l")).max(axis=0)).max() / np.median(largest) for each in (model, changed)
    ]
    assert spread[1] < 0.25 * spread[0]


def test_factors_are_those_of_the_paper():
    weight = floats(SIZE, 8)
    model = model_of([N("MatMul", ["x", "w"], ["y"], name="p")], [value("x", ["n", SIZE])], {"w": weight})
    data = feeds(3)
    changed = smooth_quant(model, data, 0.7)
    assert operators(changed) == ["Mul", "MatMul"]
    x = np.concatenate([feed["x"] for feed in data]).astype(np.float64)
    factors = np.abs(x).max(axis=0) ** 0.7 / np.abs(weight.astype(np.float64)).max(axis=1) ** 0.3
    held = constants_of(changed)
    np.testing.assert_allclose(held["x_smooth_scale"], 1 / factors, rtol=1e-6)
    np.testing.assert_allclose(held["w_smoothed"], weight * factors[:, None], rtol=1e-6)


def test_channels_and_weights_of_zero_stay():
    weight = floats(SIZE, 8)
    weight[5] = 0
    model = model_of([N("MatMul", ["x", "w"], ["y"], name="p")], [value("x", ["n", SIZE])], {"w": weight})
    data = feeds(2)
    for feed in data:
        feed["x"][:, 9] = 0
    changed = smooth_quant(model, data)
    assert (constants_of(changed)["x_smooth_scale"][[5, 9]] == 1).all()
    feed = feeds(1)[0]
    np.testing.assert_allclose(run(changed, feed), run(model, feed), atol=1e-5)


def test_weights_that_two_products_read_of_different_values():
    weight = floats(SIZE, SIZE)
    nodes = [N("MatMul", ["x", "w"], ["h"], name="first"), N("MatMul", ["h", "w"], ["y"], name="second")]
    model = model_of(nodes, [value("x", ["n", SIZE])], {"w": weight})
    data = feeds()
    wanted = run(model, data[0])
    np.testing.assert_allclose(run(smooth_quant(model, data), data[0]), wanted, atol=2e-6 * np.abs(wanted).max())


def test_values_that_others_read_as_well_are_not_changed():
    nodes = [N("LayerNormalization", ["x", "g"], ["l"], name="norm", axis=-1), N("MatMul", ["l", "w"], ["h"], name="p")]
    nodes.append(N("Add", ["h", "l"], ["y"], name="sum"))
    constants = {"g": floats(SIZE), "w": floats(SIZE, SIZE)}
    model = model_of(nodes, [value("x", ["n", SIZE])], constants)
    data = feeds()
    changed = smooth_quant(model, data)
    assert operators(changed) == ["LayerNormalization", "Mul", "MatMul", "Add"]
    np.testing.assert_array_equal(constants_of(changed)["g"], constants["g"])
    np.testing.assert_allclose(run(changed, data[0]), run(model, data[0]), atol=1e-4)


class Reader:
    def __init__(self, samples):
        self._samples = iter(samples)

    def get_next(self):
        return next(self._samples, None)


class Rewinding:
    def __init__(self, samples):
        self._samples = samples
        self.rewind()

    def get_next(self):
        return next(self._left, None)

    def rewind(self):
        self._left = (one for one in self._samples)


def test_readers_can_be_read_again():
    data = feeds()
    for reader in (Reader(data), Rewinding(data)):
        loaded = smoothed(load_model(block()), reader, Options())
        assert operators(to_message(loaded.model)).count("Mul") == 2
        assert len(list(iter(reader.get_next, None))) == 4
    with pytest.raises(InvalidQuantization, match=r"give it a method rewind\(\)"):
        smoothed(load_model(block()), (one for one in data), Options())


def test_models_without_products_stay(caplog):
    model = model_of([N("Relu", ["x"], ["y"], name="r")], [value("x", ["n", SIZE])], {})
    assert operators(smooth_quant(model, feeds())) == ["Relu"]
    assert "no MatMul and no Gemm" in caplog.text


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (None, "SmoothQuant needs samples"),
        ([], "gives no data"),
        ([3], "must give dicts"),
        ([{"x": np.full((2, SIZE), np.inf, np.float32)}], "NaN or infinite numbers of"),
    ],
)
def test_data_that_do_not_fit(reader, message):
    with pytest.raises(InvalidQuantization, match=message):
        smooth_quant(block(), reader)


def test_an_alpha_that_is_none():
    with pytest.raises(InvalidQuantization, match="SmoothQuantAlpha"):
        smooth_quant(block(), feeds(), 2)


def test_static_quantization_calibrates_the_smoothed_model(tmp_path):
    """From a file, whose activations are no longer those of the model that is quantised."""
    source, plain, target = tmp_path / "float.onnx", tmp_path / "plain.onnx", tmp_path / "smooth.onnx"
    model = block()
    onnx.save(model, source)
    samples = feeds()
    options = {"MinimumSignalToNoise": 0.0}
    products = ["MatMul", "Gemm"]
    for path, more in ((plain, {}), (target, {"SmoothQuant": True})):
        quantize_static(
            source,
            path,
            IterableReader(samples),
            op_types_to_quantize=products,
            activation_type=QuantType.QUInt8,
            extra_options=options | more,
        )
    exact = [run(model, one) for one in samples]
    errors = [
        np.mean([np.square(run(onnx.load(path), feed) - one).mean() for feed, one in zip(samples, exact, strict=True)])
        for path in (plain, target)
    ]
    assert errors[1] < 0.9 * errors[0]
