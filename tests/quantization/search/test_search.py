"""The search for a recipe, on a chain in which one product alone is sensitive."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, load, numpy_helper, save

import sardonyx
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.quantization.search.comparison import layer_deviations, output_deviations, reference_outputs, worst
from sardonyx.quantization.search.evaluation import Evaluator, Metric, Verdict
from sardonyx.quantization.search.recipe import PRESETS, Recipe, named_model, preset
from sardonyx.quantization.search.search import Search, Target
from sardonyx.quantization.search.work import work_of
from tests.quantization.search import chain

Make = Callable[..., Evaluator]
SENSITIVE = f"product_{chain.BAD}"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes an evaluator of the chain."""
    model = chain.write(tmp_path / "chain.onnx")

    def evaluator(metric: Metric | None = None, state: Path | None = None, named: bool = True) -> Evaluator:
        path = model if named else chain.write(tmp_path / "unnamed.onnx", named=False)
        return Evaluator(path, chain.feeds(), chain.feeds(), tmp_path, metric=metric, state=state)

    return evaluator


def _search(evaluator: Evaluator, target: Target, static: bool = False) -> tuple[tuple[str, ...], Verdict, bool]:
    recipe = preset(None, static)
    names = [one.name for one in evaluator.report(recipe).nodes.values() if one.is_quantized]
    found = Search(evaluator, target, work_of(evaluator.model, evaluator.feeds[0], names)).run(recipe)
    return found.recipe.kept_float, found.verdict, found.is_reached


def test_a_target_that_is_reached_costs_one_evaluation(make: Make) -> None:
    evaluator = make()
    kept, verdict, reached = _search(evaluator, Target(error=0.9))
    assert (kept, reached, evaluator.count) == ((), True, 1)
    assert 0 < verdict.error < 0.9


def test_the_sensitive_node_alone_stays_float(make: Make) -> None:
    evaluator = make()
    whole = evaluator.error(preset(None, False))
    kept, verdict, reached = _search(evaluator, Target(error=0.05))
    assert whole > 0.2
    assert kept == (SENSITIVE,)
    assert reached
    assert verdict.error <= 0.05
    assert evaluator.count < 2 * chain.LAYERS


def test_a_static_recipe_is_searched_as_well(make: Make) -> None:
    kept, verdict, reached = _search(make(), Target(error=0.08), static=True)
    assert SENSITIVE in kept
    assert reached
    assert verdict.error <= 0.08


def test_a_metric_is_a_target(make: Make) -> None:
    expected = [row[0] for row in reference_outputs(make().model, chain.feeds(), sardonyx.SessionOptions())]

    def closeness(session: sardonyx.InferenceSession) -> float:
        outputs = [session.run(None, one)[0] for one in chain.feeds()]
        return -float(np.mean([np.square(ours - exact).mean() for ours, exact in zip(outputs, expected, strict=True)]))

    evaluator = make(closeness)
    assert evaluator.float_metric() == 0
    whole = evaluator.verdict(preset(None, False))
    assert whole.metric is not None
    kept, verdict, reached = _search(evaluator, Target(metric=whole.metric / 20))
    assert reached
    assert SENSITIVE in kept
    assert verdict.metric is not None
    assert verdict.metric >= whole.metric / 20


def test_a_target_beyond_reach_gives_the_best_that_was_found(make: Make) -> None:
    evaluator = make()
    whole = evaluator.error(preset(None, False))
    _, verdict, reached = _search(evaluator, Target(error=1e-9))
    assert not reached
    assert verdict.error < whole


def test_what_was_found_is_not_done_again(make: Make, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    first = make(state=state)
    found = _search(first, Target(error=0.05))
    again = make(state=state)
    assert _search(again, Target(error=0.05)) == found
    assert first.count > 1
    assert again.count == 0


@pytest.mark.parametrize("content", ["", "[]", '{"identity": 1}', '{"identity": "other", "evaluations": []}'])
def test_a_state_of_something_else_is_refused(make: Make, tmp_path: Path, content: str) -> None:
    state = tmp_path / "state.json"
    state.write_text(content)
    with pytest.raises(InvalidQuantization, match=r"state\.json"):
        make(state=state)


def test_a_state_without_a_number_is_refused(make: Make, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    make(state=state).verdict(preset(None, False))
    content = json.loads(state.read_text())
    content["evaluations"][0]["error"] = "much"
    state.write_text(json.dumps(content))
    with pytest.raises(InvalidQuantization, match="holds no state"):
        make(state=state)


def test_nodes_without_names_can_stay_float(make: Make) -> None:
    evaluator = make(named=False)
    kept, _, reached = _search(evaluator, Target(error=0.05))
    assert reached
    assert len(kept) == 1
    names = [node.name for node in named_model(evaluator.model).model.graph]
    assert len(set(names)) == len(names)
    assert kept[0] in names


def test_a_metric_that_gives_no_number_is_refused(make: Make) -> None:
    with pytest.raises(InvalidQuantization, match="give a number"):
        make(lambda session: float("nan")).verdict(preset(None, False))


def test_samples_are_needed(tmp_path: Path) -> None:
    with pytest.raises(InvalidQuantization, match="there are none"):
        Evaluator(chain.write(tmp_path / "chain.onnx"), [], [], tmp_path)


def test_deviations_are_those_of_numpy(make: Make, tmp_path: Path) -> None:
    evaluator = make()
    target = tmp_path / "quantised.onnx"
    preset(None, False).apply(evaluator.model, target)
    options = sardonyx.SessionOptions()
    expected = reference_outputs(evaluator.model, evaluator.feeds, options)
    found = output_deviations(target, evaluator.feeds, expected, options)
    session = sardonyx.InferenceSession(target)
    ours = np.concatenate([session.run(None, one)[0] for one in evaluator.feeds]).astype(float)
    exact = np.concatenate([row[0] for row in expected]).astype(float)
    assert [one.name for one in found] == ["y"]
    np.testing.assert_allclose(found[0].relative, np.linalg.norm(ours - exact) / np.linalg.norm(exact), rtol=1e-12)
    np.testing.assert_allclose(found[0].largest, np.abs(ours - exact).max(), rtol=1e-12)
    np.testing.assert_allclose(found[0].decibels, -20 * np.log10(found[0].relative), rtol=1e-12)
    assert worst(found) == found[0].relative


def test_layers_come_worst_first(make: Make, tmp_path: Path) -> None:
    evaluator = make()
    target = tmp_path / "quantised.onnx"
    report = preset(None, False).apply(evaluator.model, target)
    names = [one.name for one in report.nodes.values() if one.is_quantized]
    layers = layer_deviations(evaluator.model, target, evaluator.feeds, names, sardonyx.SessionOptions())
    assert {one.node for one in layers} == {f"product_{layer}" for layer in range(chain.LAYERS)}
    assert [one.relative for one in layers] == sorted((one.relative for one in layers), reverse=True)
    before = {one.node: one.relative for one in layers}
    assert before[SENSITIVE] > 5 * before[f"product_{chain.BAD - 1}"]


def test_a_model_is_no_distance_from_itself(make: Make) -> None:
    evaluator = make()
    options = sardonyx.SessionOptions()
    expected = reference_outputs(evaluator.model, evaluator.feeds, options)
    found = output_deviations(evaluator.model, evaluator.feeds, expected, options)
    assert [one.relative for one in found] == [0.0]
    assert found[0].decibels == np.inf


@pytest.mark.parametrize("name", PRESETS)
def test_presets_quantise_statically(make: Make, tmp_path: Path, name: str) -> None:
    evaluator = make()
    recipe = preset(name, True)
    report = recipe.apply(evaluator.model, tmp_path / "quantised.onnx", evaluator.ranges(recipe))
    assert report.count >= chain.LAYERS


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(InvalidQuantization, match="the presets are avx2"):
        preset("avx1024", True)
    with pytest.raises(InvalidQuantization, match="static"):
        preset("tensorrt", False)


def test_work_is_that_of_the_sizes_that_are_fed(make: Make) -> None:
    evaluator = make()
    work = work_of(evaluator.model, evaluator.feeds[0], ["product_0", "product_5"])
    assert dict(work) == {"product_0": 2 * 16 * 32 * 32, "product_5": 2 * 16 * 32 * 32}


def _transformer(path: Path, convolution: bool = False) -> Path:
    """A product, a sum with the state before it, and a normalisation; or the same behind a Conv."""
    weight = np.random.default_rng(2).normal(size=(16, 16)).astype(np.float32)
    first = [helper.make_node("Conv", ["x", "k"], ["s"], name="conv")] if convolution else []
    state = "s" if convolution else "x"
    graph = helper.make_graph(
        [
            *first,
            helper.make_node("MatMul", [state, "w"], ["p"], name="product"),
            helper.make_node("Add", ["p", state], ["a"], name="sum"),
            helper.make_node("LayerNormalization", ["a", "one"], ["y"], name="normal"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 16])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.ones(16, np.float32), "one"),
            numpy_helper.from_array(np.eye(4, dtype=np.float32)[..., None], "k"),
        ],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("convolution", [False, True])
def test_a_transformer_is_tried_with_its_products_alone(tmp_path: Path, convolution: bool) -> None:
    model = _transformer(tmp_path / "model.onnx", convolution)
    feeds = [{"x": np.random.default_rng(3).normal(size=(1, 4, 16)).astype(np.float32)}]
    evaluator = Evaluator(model, feeds, feeds, tmp_path)
    whole, products = preset(None, True), preset(None, True).products_only
    target = (evaluator.error(whole) + evaluator.error(products)) / 2
    assert evaluator.error(products) < evaluator.error(whole)
    costs = {one.name: 1.0 for one in evaluator.report(whole).nodes.values() if one.is_quantized}
    before = evaluator.count
    found = Search(evaluator, Target(error=target), costs).run(whole)
    assert (found.recipe == products) is not convolution
    assert (evaluator.count == before) is not convolution  # both were known


def _outlying(path: Path) -> Path:
    """A transformer's block whose first normalisation makes one channel a hundred times as large as the others."""
    rng = np.random.default_rng(4)
    scale = np.where(np.arange(16) == 5, 100, 1).astype(np.float32)
    weight = (rng.normal(size=(16, 16)) / scale[:, None]).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("LayerNormalization", ["x", "scale"], ["n"], name="normal"),
            helper.make_node("MatMul", ["n", "w"], ["p"], name="product"),
            helper.make_node("Add", ["p", "x"], ["y"], name="sum"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 16])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(scale, "scale")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("static", [False, True])
def test_outliers_of_a_transformer_move_into_weights(tmp_path: Path, static: bool) -> None:
    model = _outlying(tmp_path / "model.onnx")
    feeds = [{"x": np.random.default_rng(3).normal(size=(1, 8, 16)).astype(np.float32)}]
    evaluator = Evaluator(model, feeds, feeds, tmp_path)
    base = preset(None, static).with_changes(options={"MinimumSignalToNoise": 0})
    costs = {one.name: 1.0 for one in evaluator.report(base).nodes.values() if one.is_quantized}
    before = evaluator.error(base)
    found = Search(evaluator, Target(error=0.01), costs).run(base)
    assert found.is_reached
    assert found.recipe.options["SmoothQuant"]
    assert found.recipe.kept_float == ()
    assert found.verdict.error < before / 3
    assert evaluator.count <= 4

    target = tmp_path / "int8.onnx"
    report = evaluator.apply(found.recipe, target)
    assert [one.name for one in report.nodes.values() if one.is_quantized] == ["product"]
    options = sardonyx.SessionOptions()
    assert worst(output_deviations(target, feeds, evaluator.expected, options)) == found.verdict.error
    # What is smoothed has the meaning that it had, and values of its own inside.
    smoothed = evaluator.prepared(found.recipe)
    assert worst(output_deviations(smoothed, feeds, evaluator.expected, options)) < 1e-6
    (layer,) = layer_deviations(smoothed, target, feeds, ["product"], options)
    assert layer.relative < 0.02


def test_a_part_of_a_group_has_what_the_other_leaves(make: Make) -> None:
    evaluator = make()
    _search(evaluator, Target(error=0.05))
    assert evaluator.count <= 2 + int(np.ceil(np.log2(chain.LAYERS)))  # all, the answer, and one for each division


def test_a_recipe_of_products_stores_their_inputs_alone(tmp_path: Path) -> None:
    model = _transformer(tmp_path / "model.onnx")
    feeds = [{"x": np.random.default_rng(3).normal(size=(1, 4, 16)).astype(np.float32)}]
    recipe = preset(None, True).products_only
    recipe.apply(model, tmp_path / "products.onnx", Evaluator(model, feeds, feeds, tmp_path).ranges(recipe))
    nodes = load(tmp_path / "products.onnx").graph.node
    assert [node.input[0] for node in nodes if node.op_type == "QuantizeLinear"] == ["x"]
    (total,) = (node for node in nodes if node.op_type == "Add")
    assert "p" in total.input


def test_a_rest_that_is_not_quantised_alone_ends_the_search(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = make()
    names = [one.name for one in evaluator.report(preset(None, False)).nodes.values() if one.is_quantized]
    verdict = Evaluator.verdict

    def refusing(self: Evaluator, recipe: Recipe) -> Verdict:
        if len(recipe.kept_float) > len(names) // 2:
            raise InvalidQuantization("No node of the model can be quantised as asked")
        return verdict(self, recipe)

    monkeypatch.setattr(Evaluator, "verdict", refusing)
    _, found, reached = _search(evaluator, Target(error=1e-9))
    assert not reached
    assert np.isfinite(found.error)
