"""Each class without generation gives what PyTorch's model gives, for arrays and for tensors, bound and not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import errors, models
from tests.models.tiny_models import MODELS, OTHER, Folders, inputs_of, torch_model, torch_outputs

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
pytestmark = pytest.mark.xdist_group("tiny_models")


@pytest.fixture(scope="module", params=list(MODELS))
def loaded(request: pytest.FixtureRequest, tiny: Folders) -> tuple[str, Any, dict[str, Any], dict[str, Any]]:
    """A task, our model, inputs of other sizes than it was exported with, and what PyTorch makes of them."""
    task = request.param
    folder = tiny(task)
    inputs = inputs_of(task, OTHER, seed=1)
    expected = torch_outputs(task, torch_model(task, folder), inputs)
    return task, getattr(models, MODELS[task].ours).from_pretrained(folder), inputs, expected


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), value, rtol=1e-4, atol=1e-4 * np.abs(value).max())


def test_arrays_in_and_out(loaded: Any) -> None:
    task, model, inputs, expected = loaded
    found = model(**inputs)
    assert all(type(found[name]) is np.ndarray for name in expected)
    check(found, expected)
    assert list(found)[: len(expected)] == list(MODELS[task].outputs)
    first = next(iter(expected))
    assert found[0] is found[first] is getattr(found, first)


@pytest.mark.parametrize("bound", [False, True])
def test_tensors_in_and_out(loaded: Any, bound: bool) -> None:
    _, model, inputs, expected = loaded
    model.use_io_binding = bound
    found = model(**{name: torch.from_numpy(value) for name, value in inputs.items()}, return_dict=False)
    assert isinstance(found, tuple)
    assert all(isinstance(value, torch.Tensor) for value in found)
    check(dict(zip(expected, found, strict=True)), expected)
    assert model.use_io_binding is bound


def test_what_is_left_out(tiny: Folders) -> None:
    """No padding and one segment, as in PyTorch."""
    task = "feature-extraction"
    inputs = {"input_ids": inputs_of(task, OTHER)["input_ids"]}
    model = models.ORTModelForFeatureExtraction.from_pretrained(tiny(task))
    check(model(**inputs), torch_outputs(task, torch_model(task, tiny(task)), inputs))
    check(model(inputs["input_ids"].tolist()), torch_outputs(task, torch_model(task, tiny(task)), inputs))
    with pytest.raises(errors.InvalidArgument, match="needs the inputs input_ids, attention_mask"):
        model(return_dict=True)
    with pytest.raises(errors.InvalidArgument, match=r"input_ids is no array.*Pad rows"):
        model([[5, 6, 7], [5, 6]])


def test_names_that_the_model_does_not_know(tiny: Folders, capfd: pytest.CaptureFixture[str]) -> None:
    model = models.ORTModelForTokenClassification.from_pretrained(tiny("token-classification"))
    inputs = inputs_of("token-classification", OTHER)
    for _ in range(2):
        assert "logits" in model(**inputs, head_mask=np.ones(2), labels=None)
    assert capfd.readouterr().err.count("has no input head_mask") == 1


def test_a_model_of_another_task(tiny: Folders) -> None:
    model = models.ORTModelForQuestionAnswering.from_pretrained(tiny("text-classification"))
    with pytest.raises(errors.InvalidArgument, match=r"outputs logits, and .* gives start_logits, end_logits"):
        model(**inputs_of("text-classification", OTHER))


def test_custom_tasks(tiny: Folders) -> None:
    task = "feature-extraction"
    inputs = inputs_of(task, OTHER)
    model = models.ORTModelForCustomTasks.from_pretrained(tiny(task))
    found = model(**inputs)
    assert list(found) == list(MODELS[task].outputs)
    check(found, torch_outputs(task, torch_model(task, tiny(task)), inputs))
