"""An ONNX model over token ids, run for many texts in batches of like lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import errors
from sardonyx.models import devices, vocabulary
from sardonyx.models.sentences.batching import batches
from sardonyx.models.sentences.tokens import Text, TextTokenizer, Tokens, padded
from sardonyx.runtime.threads.processors import default_threads

if TYPE_CHECKING:
    from sardonyx.models.part import Part

# Texts that are tokenized at once, beside the runs of those before them: memory stays bounded for any number of texts,
# and a batch finds texts of its length among them.
WINDOW = 4096
_CACHE_PREFIXES = ("past_key_values.", "past_key_values_", "past.")


@dataclass
class Batch:
    """What a run gave: `rows` are the texts' indices, `mask` (texts, tokens) says which tokens are no padding."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    output: np.ndarray[Any, Any]
    mask: np.ndarray[Any, np.dtype[np.bool_]]


class TextModel:
    """A session and its tokenizer. `output` is the name of what runs give.

    `errors.InvalidArgument` for a model that takes something else than tokens.
    """

    def __init__(self, part: Part, tokenizer: TextTokenizer, output: str) -> None:
        self.part = part
        self.tokenizer = tokenizer
        self.output = output
        known = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
        if "input_ids" not in part.inputs:
            raise errors.InvalidArgument(f"{part.path} takes no input_ids, but {', '.join(part.inputs)}")
        for name in part.inputs:
            if name not in known and not name.startswith(_CACHE_PREFIXES):
                raise errors.InvalidArgument(f"{part.path} takes {name}, which does not come from texts")
        shape = part.input_shapes["input_ids"]
        self._texts = shape[0] if shape and isinstance(shape[0], int) else None
        self._threads = part.session.get_session_options().intra_op_num_threads or default_threads()
        self._width = shape[1] if len(shape) > 1 and isinstance(shape[1], int) else None

    def run(
        self,
        texts: Sequence[Text],
        most_texts: int | None = None,
        max_length: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Batch]:
        """Runs for all texts, in an order of their own; `progress` is told how many texts each was for."""
        for start, tokens in self._tokenized(texts, self._limit(max_length)):
            for chosen in batches(tokens.lengths, self._threads, self._most(most_texts)):
                yield self._run(tokens, chosen, start)
                if progress is not None:
                    progress(len(chosen))

    def _limit(self, max_length: int | None) -> int | None:
        limits = [one for one in (max_length or self.tokenizer.max_length, self._width) if one is not None]
        return min(limits, default=None)

    def _most(self, most_texts: int | None) -> int | None:
        return most_texts if self._texts is None else self._texts

    def _tokenized(self, texts: Sequence[Text], max_length: int | None) -> Iterator[tuple[int, Tokens]]:
        """Windows of texts by the index of their first: while one runs, the next is tokenized."""
        has_types = "token_type_ids" in self.part.inputs
        starts = range(0, len(texts), WINDOW)

        def tokens(start: int) -> Tokens:
            return self.tokenizer.encode(texts[start : start + WINDOW], max_length, has_types)

        if len(starts) < 2:
            for start in starts:
                yield start, tokens(start)
            return
        with ThreadPoolExecutor(1, "sardonyx-tokens") as pool:
            coming = pool.submit(tokens, 0)
            for start in starts:
                found = coming.result()
                if start + WINDOW < len(texts):
                    coming = pool.submit(tokens, start + WINDOW)
                yield start, found

    def _run(self, tokens: Tokens, chosen: np.ndarray[Any, np.dtype[np.int64]], start: int) -> Batch:
        ids = [tokens.ids[at] for at in chosen]
        types = [tokens.types[at] for at in chosen] if tokens.types is not None else None
        count = len(ids)
        if self._texts is not None and count < self._texts:  # a model of a fixed number of texts
            fill = self._texts - count
            ids += ids[:1] * fill
            types = types + types[:1] * fill if types is not None else None
        width = self._width or max(len(row) for row in ids) or 1
        left = self.tokenizer.on_left
        mask = padded([[1] * len(row) for row in ids], width, 0, left)
        values = {"input_ids": padded(ids, width, self.tokenizer.pad_id, left), "attention_mask": mask}
        if types is not None:
            values["token_type_ids"] = padded(types, width, 0, left)
        if "position_ids" in self.part.inputs:
            values["position_ids"] = np.maximum(mask.cumsum(axis=1) - 1, 0)
        for name in self.part.inputs:
            if name.startswith(_CACHE_PREFIXES):
                values[name] = self._empty_cache(name, len(ids))
        try:
            output = self.part.run(values, [self.output])[self.output]
        except errors.OnnxRuntimeError as error:
            raise vocabulary.explained(error, values["input_ids"], self.tokenizer.model_config) from error
        return Batch(chosen + start, output[:count], mask[:count].astype(bool))

    def _empty_cache(self, name: str, texts: int) -> np.ndarray[Any, Any]:
        """A cache of no positions, as decoders that make vectors ask for it."""
        shape = self.part.input_shapes[name]
        sizes = [texts, *(size if isinstance(size, int) else 0 for size in shape[1:])]
        return np.zeros(sizes, self.part.inputs[name])


def listed(sentences: Any, culprit: str) -> list[Any]:
    """Texts as a list; `errors.InvalidArgument` for what is no collection, and for the first that is no text."""
    if not isinstance(sentences, Iterable):
        raise errors.InvalidArgument(f"{culprit} is a text or a list of texts, and not of type {_kind(sentences)}")
    texts = list(sentences)
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise errors.InvalidArgument(f"{culprit}[{at}] is no text, but of type {_kind(text)}")
    return texts


def _kind(value: object) -> str:
    return type(value).__name__


def check_count(value: object, name: str, what: str) -> None:
    """`errors.InvalidArgument` for what is neither None nor a whole number above 0; `what` is counted."""
    if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1):
        raise errors.InvalidArgument(f"{name} is a number of {what}, 1 or more, or None, and not {value!r}")


def check_device(device: Any) -> None:
    """`errors.InvalidArgument` for a device that models do not run on."""
    if device is not None:
        devices.check_device(device)
