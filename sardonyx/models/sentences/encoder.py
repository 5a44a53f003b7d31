"""`SentenceEncoder`: texts in, vectors out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors
from sardonyx.models.arrays import as_numpy, as_tensor
from sardonyx.models.held import Held
from sardonyx.models.requirements import require
from sardonyx.models.sentences.layers import normalised
from sardonyx.models.sentences.layout import read_layout
from sardonyx.models.sentences.opening import open_model
from sardonyx.models.sentences.pooling import Pooling
from sardonyx.models.sentences.precision import check_precision, quantized
from sardonyx.models.sentences.progress import progress_bar
from sardonyx.models.sentences.similarity import similarity
from sardonyx.models.sentences.text_model import TextModel, check_count, check_device, listed
from sardonyx.models.sentences.tokens import TextTokenizer
from sardonyx.models.sessions import SessionSettings

if TYPE_CHECKING:
    from sardonyx.api.options.session_options import SessionOptions
    from sardonyx.models.part import Part

# Outputs with a vector for each token, and those with one for each text, by the names that exporters give them.
_STATES = ("token_embeddings", "last_hidden_state", "hidden_states")
_VECTORS = ("sentence_embedding", "sentence_embeddings", "text_embeds", "pooled_output", "pooler_output")


class SentenceEncoder(Held):
    """Vectors of texts by an ONNX model, as sentence-transformers computes them from the same folder.

    It needs the packages numpy and tokenizers alone. `model_id` is a folder, or an id of the Hugging Face hub: as
    sentence-transformers lays it out (`modules.json`, `onnx/model.onnx`), or Optimum, transformers.js or FastEmbed
    (`model.onnx` and `tokenizer.json`). `file_name` picks one of several ONNX files; where there is none, and with
    `export`, the PyTorch model is exported.

    Where there is no `modules.json`, nothing says how vectors are made. Then `pooling` names the mode, or several
    ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"; default: what the model itself gives for
    a text, else "mean"), and `normalize` says whether they are scaled to length 1. Both replace what a folder says.

    `errors.NoSuchFile` for a folder without a model, `errors.NotImplemented` for modules that are not known here,
    `errors.Fail` for files that are not whole.
    """

    def __init__(
        self,
        model_id: str | os.PathLike[str],
        *,
        file_name: str | None = None,
        pooling: str | Sequence[str] | None = None,
        normalize: bool | None = None,
        max_seq_length: int | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
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
        self._opened = open_model(model_id, "feature-extraction", settings, file_name, export, subfolder, hub)
        files, part = self._opened.files, self._opened.part
        layout = read_layout(files)
        check_count(max_seq_length, "max_seq_length", "tokens")
        limit = layout.max_length if max_seq_length is None else max_seq_length
        tokenizer = TextTokenizer(files, limit, layout.lower_case)
        output, has_states = _output(part, prefer_states=pooling is not None or layout.pooling is not None)
        self._model = TextModel(part, tokenizer, output)
        self._pooling = Pooling(pooling) if pooling is not None else layout.pooling or Pooling()
        self._layers = list(layout.layers) if has_states else []
        if normalize is not None:
            self._layers = [layer for layer in self._layers if layer is not normalised]
            self._layers += [normalised] if normalize else []
        self._layout = layout
        self._size = _size(part, output, len(self._pooling.modes), layout.size)
        # Those two are always there: `encode_query` and `encode_document` take them, and not the default.
        check_prompts(prompts)
        self.prompts = {"query": "", "document": "", **layout.prompts, **(prompts or {})}
        self.default_prompt_name = default_prompt_name or layout.default_prompt_name
        if self.default_prompt_name is not None:
            self._prompt(None, self.default_prompt_name)
        check_count(truncate_dim, "truncate_dim", "elements")
        self.truncate_dim = truncate_dim if truncate_dim is not None else layout.truncate_dim

    _own_of_copies = ("prompts",)

    def _how_to_make(self) -> str:
        return f"Call SentenceEncoder(...) in each process, for {self._opened.files.where}"

    @property
    def max_seq_length(self) -> int | None:
        """How many tokens of a text are looked at; None where there is no limit."""
        return self._model.tokenizer.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        check_count(value, "max_seq_length", "tokens")
        self._model.tokenizer.max_length = value

    @property
    def providers(self) -> list[str]:
        """The names of the session's execution providers, by priority."""
        return self._model.part.session.get_providers()

    def get_sentence_embedding_dimension(self) -> int | None:
        """The size of the vectors; None for a model that does not tell it."""
        if self.truncate_dim is None or self._size is None:
            return self.truncate_dim or self._size
        return min(self.truncate_dim, self._size)

    def encode_query(self, sentences: str | Sequence[str], prompt_name: str | None = None, **options: Any) -> Any:
        """`encode` for queries: with the prompt "query" where no other is asked for."""
        if prompt_name is None and options.get("prompt") is None:
            prompt_name = "query"
        return self._encode(sentences, prompt_name, max_length=self._layout.query_length, **options)

    def encode_document(self, sentences: str | Sequence[str], prompt_name: str | None = None, **options: Any) -> Any:
        """`encode` for texts that queries are to find: with the prompt "document" where no other is asked for.

        A model whose prompt has another name, such as "passage", is told so by `prompt_name`.
        """
        if prompt_name is None and options.get("prompt") is None:
            prompt_name = "document"
        return self._encode(sentences, prompt_name, max_length=self._layout.document_length, **options)

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Vectors of texts: a float32 array (texts, size) in their order, or (size,) for one text.

        Texts of like lengths run together; `batch_size` is the most of them at once (default: as many as are fast).
        `prompt`, or the one that `prompt_name` names, is put before each text. `normalize_embeddings` scales vectors to
        length 1, after `truncate_dim` has cut them to their first elements. `precision` "int8" and "uint8" give bytes
        by the ranges of the call's vectors, "binary" and "ubinary" one bit for each element, eight in a byte.
        `output_value="token_embeddings"` gives a list of arrays (tokens, size) instead. With `convert_to_tensor` the
        result is a torch tensor, and without `convert_to_numpy` a list of them.

        `errors.InvalidArgument` for what is no text, an unknown prompt, and options that do not go together.
        """
        return self._encode(
            sentences,
            prompt_name,
            prompt,
            batch_size,
            show_progress_bar,
            output_value,
            precision,
            convert_to_numpy,
            convert_to_tensor,
            device,
            normalize_embeddings,
            truncate_dim,
        )

    def similarity(self, first: Any, second: Any) -> np.ndarray[Any, Any]:
        """How alike vectors are (n, size) and (m, size): an array (n, m), by the measure that the folder names."""
        return similarity(as_numpy(first, "first"), as_numpy(second, "second"), self._layout.similarity)

    def _encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        max_length: int | None = None,
    ) -> Any:
        check_count(batch_size, "batch_size", "texts")
        check_count(truncate_dim, "truncate_dim", "elements")
        check_device(device)
        check_precision(precision)
        if output_value not in ("sentence_embedding", "token_embeddings"):
            raise errors.InvalidArgument(
                f"output_value is 'sentence_embedding' or 'token_embeddings', and not {output_value!r}"
            )
        is_one = isinstance(sentences, str)
        texts = [sentences] if isinstance(sentences, str) else listed(sentences, "sentences")
        before = self._prompt(prompt, prompt_name)
        prompt_length = 0
        if before:
            texts = [before + text for text in texts]
            prompt_length = self._model.tokenizer.prompt_length(before, max_length)
        with progress_bar(len(texts), bool(show_progress_bar)) as progress:
            runs = self._model.run(texts, batch_size, max_length, progress)
            if output_value == "token_embeddings":
                return self._tokens(runs, len(texts), is_one, convert_to_tensor)
            cut = truncate_dim if truncate_dim is not None else self.truncate_dim
            vectors = self._vectors(runs, len(texts), prompt_length, cut, normalize_embeddings)
        vectors = quantized(vectors, precision) if len(vectors) else vectors
        if convert_to_tensor or not convert_to_numpy:
            require("torch", "convert_to_tensor=True" if convert_to_tensor else "convert_to_numpy=False")
            vectors = as_tensor(vectors)
            if not convert_to_tensor and not is_one:
                return list(vectors)
        return vectors[0] if is_one else vectors

    def _vectors(
        self, runs: Iterator[Any], count: int, prompt_length: int, cut: int | None, scaled: bool
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        vectors: np.ndarray[Any, np.dtype[np.float32]] | None = None
        for run in runs:
            found = run.output.astype(np.float32, copy=False)
            if found.ndim == 3:
                found = self._pooling(found, run.mask, prompt_length)
            for layer in self._layers:
                found = layer(found)
            found = found[:, :cut]
            if scaled:
                found = normalised(found)
            if vectors is None:
                vectors = np.empty((count, found.shape[1]), np.float32)
            vectors[run.rows] = found
        if vectors is None:
            return np.empty((0, self.get_sentence_embedding_dimension() or 0), np.float32)
        return vectors

    @staticmethod
    def _tokens(runs: Iterator[Any], count: int, is_one: bool, as_tensors: bool) -> Any:
        found: list[Any] = [None] * count
        for run in runs:
            if run.output.ndim != 3:
                raise errors.InvalidArgument("The model gives one vector for a text, and none for each token")
            for row, states, mask in zip(run.rows, run.output, run.mask, strict=True):
                # A copy, so that the batch's memory is not kept for the sake of a short text.
                found[row] = states[mask].astype(np.float32, copy=False)
        if as_tensors:
            require("torch", "convert_to_tensor=True")
            found = [as_tensor(one) for one in found]
        return found[0] if is_one else found

    def _prompt(self, prompt: str | None, name: str | None) -> str | None:
        if prompt is not None:
            check_prompts({"prompt": prompt})
            return prompt
        name = name if name is not None else self.default_prompt_name
        if name is None:
            return None
        if not isinstance(name, str) or name not in self.prompts:
            raise errors.InvalidArgument(
                f"There is no prompt {name!r}; prompts are {', '.join(self.prompts) or 'none at all'}"
            )
        return self.prompts[name]


def check_prompts(prompts: Any) -> None:
    """`errors.InvalidArgument` for what is no dictionary of texts."""
    if prompts is None:
        return
    if not isinstance(prompts, Mapping):
        raise errors.InvalidArgument(f"prompts is a dictionary of texts by name, and not {prompts!r:.60}")
    for name, text in prompts.items():
        if not isinstance(text, str):
            raise errors.InvalidArgument(f"The prompt {name!r} is a text, and not {text!r:.60}")


def _output(part: Part, prefer_states: bool) -> tuple[str, bool]:
    """The output that is asked for, and whether it has a vector for each token."""
    ranks = {name: len(shape) for name, shape in part.output_shapes.items()}
    names = [*(one for one in _STATES if one in ranks), *(one for one, rank in ranks.items() if rank == 3)]
    vectors = [one for one in _VECTORS if one in ranks]
    if not prefer_states and vectors:
        return vectors[0], False
    if names:
        return names[0], True
    others = [*vectors, *(one for one, rank in ranks.items() if rank == 2)]
    if others:
        return others[0], False
    raise errors.InvalidArgument(f"{part.path} gives no vectors, but {', '.join(ranks)}")


def _size(part: Part, output: str, modes: int, of_layers: int | None) -> int | None:
    shape = part.output_shapes[output]
    if of_layers is not None:
        return of_layers
    last = shape[-1] if shape else None
    return last * (modes if len(shape) == 3 else 1) if isinstance(last, int) else None
