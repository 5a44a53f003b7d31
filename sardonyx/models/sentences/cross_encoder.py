"""`CrossEncoder`: pairs of texts in, scores out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import as_numpy, as_tensor
from sardonyx.models.folders.json_files import Section
from sardonyx.models.held import Held
from sardonyx.models.requirements import require
from sardonyx.models.sentences.layers import activation
from sardonyx.models.sentences.layout import read_layout
from sardonyx.models.sentences.opening import open_model, read_config
from sardonyx.models.sentences.progress import progress_bar
from sardonyx.models.sentences.text_model import TextModel, check_count, check_device, listed
from sardonyx.models.sentences.tokens import TextTokenizer
from sardonyx.models.sessions import SessionSettings

if TYPE_CHECKING:
    from sardonyx.api.options.session_options import SessionOptions

_IDENTITY = "torch.nn.modules.linear.Identity"
_SIGMOID = "torch.nn.modules.activation.Sigmoid"

Activation = Callable[[np.ndarray[Any, Any]], Any]


class CrossEncoder(Held):
    """Scores of pairs of texts by an ONNX model with one or several labels, as sentence-transformers computes them.

    `model_id` is a folder with the model (`onnx/model.onnx` or `model.onnx`), its tokenizer and `config.json`, or an id
    of the Hugging Face hub; where there is no ONNX file, and with `export`, the PyTorch model is exported. `max_length`
    is the number of tokens that a pair is cut to, the longer of both texts first. `activation_fn` is a function of
    arrays that is applied to the logits: by default that of the folder, else a sigmoid for one label and nothing for
    several.

    `errors.NoSuchFile` for a folder without a model, `errors.InvalidArgument` for a model without logits.
    """

    def __init__(
        self,
        model_id: str | os.PathLike[str],
        *,
        file_name: str | None = None,
        max_length: int | None = None,
        activation_fn: Activation | None = None,
        export: bool = False,
        subfolder: str = "",
        revision: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        provider: str | None = None,
        providers: Sequence[str] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        session_options: SessionOptions | None = None,
    ) -> None:
        settings = SessionSettings(provider, providers, provider_options, session_options)
        hub = {"revision": revision, "cache_dir": cache_dir, "local_files_only": local_files_only, "token": token}
        self._opened = open_model(model_id, "text-classification", settings, file_name, export, subfolder, hub)
        files, part = self._opened.files, self._opened.part
        layout = read_layout(files)
        if "logits" not in part.outputs:
            raise errors.InvalidArgument(f"{part.path} gives no logits, but {', '.join(part.outputs)}")
        check_count(max_length, "max_length", "tokens")
        limit = layout.max_length if max_length is None else max_length
        self._model = TextModel(part, TextTokenizer(files, limit, layout.lower_case), "logits")
        config = read_config(files, "config.json")
        last = part.output_shapes["logits"][-1]
        self.num_labels = last if isinstance(last, int) else len(config.section("id2label")) or 1
        _check_activation(activation_fn)
        self.activation_fn = activation_fn if activation_fn is not None else self._default(config)

    def _how_to_make(self) -> str:
        return f"Call CrossEncoder(...) in each process, for {self._opened.files.where}"

    def _default(self, config: Section) -> Activation:
        """What the config names, in its new form or its old one."""
        named = config.section("sentence_transformers").text("activation_fn")
        named = named or config.text("sbert_ce_default_activation_function")
        return activation(named or (_SIGMOID if self.num_labels == 1 else _IDENTITY))

    def predict(
        self,
        sentences: tuple[str, str] | Sequence[tuple[str, str]],
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
    ) -> Any:
        """Scores of pairs: a float32 array (pairs,) for a model of one label, else (pairs, labels).

        One pair gives one score, or (labels,). Pairs of like lengths run together; `batch_size` is the most of them at
        once. With `convert_to_tensor` the result is a torch tensor, and without `convert_to_numpy` a list of them.
        """
        check_count(batch_size, "batch_size", "pairs")
        check_device(device)
        _check_activation(activation_fn)
        given = _listed(sentences, "sentences", "a pair of texts or a list of pairs")
        is_one = len(given) == 2 and not isinstance(sentences, str) and all(isinstance(one, str) for one in given)
        pairs = [_pair(0, given)] if is_one else [_pair(at, one) for at, one in enumerate(given)]
        apply = activation_fn if activation_fn is not None else self.activation_fn
        scores: np.ndarray[Any, Any] | None = None
        with progress_bar(len(pairs), bool(show_progress_bar)) as progress:
            for run in self._model.run(pairs, batch_size, progress=progress):
                found = _applied(apply, run.output.astype(np.float32, copy=False))
                if found.ndim > 1 and found.shape[1] == 1:
                    found = found[:, 0]
                if apply_softmax and found.ndim > 1:
                    found = np.exp(found - found.max(axis=1, keepdims=True))
                    found /= found.sum(axis=1, keepdims=True)
                if scores is None:
                    scores = np.empty((len(pairs), *found.shape[1:]), np.float32)
                scores[run.rows] = found
        if scores is None:
            scores = np.empty((0,) if self.num_labels == 1 else (0, self.num_labels), np.float32)
        if convert_to_tensor or not convert_to_numpy:
            require("torch", "convert_to_tensor=True" if convert_to_tensor else "convert_to_numpy=False")
            tensor = as_tensor(scores)
            if is_one:
                return tensor[0]
            return tensor if convert_to_tensor else list(tensor)
        return scores[0] if is_one else scores

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        activation_fn: Activation | None = None,
    ) -> list[dict[str, Any]]:
        """The documents by their scores with a query, the best first: `corpus_id`, `score`, and `text` if asked for.

        `errors.InvalidArgument` for a model of several labels.
        """
        if self.num_labels != 1:
            raise errors.InvalidArgument(
                f"rank needs a model of one label, and this one has {self.num_labels}: use predict, which gives all"
            )
        check_count(top_k, "top_k", "documents")
        texts = [documents] if isinstance(documents, str) else listed(documents, "documents")
        scores = self.predict([(query, document) for document in texts], batch_size, show_progress_bar, activation_fn)
        # Stable: of two with one score, the first comes first.
        order = np.argsort(-scores, kind="stable")[:top_k]
        found: list[dict[str, Any]] = [{"corpus_id": int(at), "score": float(scores[at])} for at in order]
        if return_documents:
            for one, at in zip(found, order, strict=True):
                one["text"] = texts[int(at)]
        return found


def _listed(sentences: Any, culprit: str, what: str) -> list[Any]:
    if not isinstance(sentences, Iterable):
        raise errors.InvalidArgument(f"{culprit} is {what}, and not of type {type(sentences).__name__}")
    return list(sentences)


def _check_activation(activation_fn: object) -> None:
    if activation_fn is not None and not callable(activation_fn):
        raise errors.InvalidArgument(
            f"activation_fn is a function of an array of logits, and not {activation_fn!r:.60}"
        )


def _applied(function: Activation, logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    found = as_numpy(function(logits), "What activation_fn gave")
    if found.shape[:1] != logits.shape[:1]:
        raise errors.InvalidArgument(
            f"activation_fn gave an array of shape {list(found.shape)} for logits of shape {list(logits.shape)}: "
            "expected a score for each row, or several"
        )
    return found


def _pair(at: int, value: Any) -> tuple[str, str]:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(isinstance(one, str) for one in value):
        raise errors.InvalidArgument(f"sentences[{at}] is no pair of texts, but {value!r:.80}")
    return value[0], value[1]
