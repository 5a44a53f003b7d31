"""The best tokens of each row of scores and what all scores add up to, in one run of a small model of our own."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession

Array = np.ndarray[Any, Any]

_MODEL = """<ir_version: 10, opset_import: ["" : 21]>
top (float[rows, words] scores, int64[1] count)
    => (float[rows, best] kept, int64[rows, best] tokens, float[rows, 1] total)
<int64[1] zero = {0}, int64[1] one = {1}>
{
    kept, tokens = TopK <axis = 1> (scores, count)
    largest = Slice (kept, zero, one, one)
    below = Sub (scores, largest)
    shares = Exp (below)
    total = ReduceSum <keepdims = 1> (shares, one)
}"""


@dataclass(frozen=True)
class TopScores:
    """Of each row the best scores, the best first, of equal ones the first (rows, count); the tokens that they are of;
    and the sum of exp(score - best score) over all tokens (rows, 1), NaN where a score is."""

    scores: Array
    tokens: Array
    total: Array

    @property
    def logarithms(self) -> Array:
        """The logarithms of the probabilities of these tokens."""
        found: Array = (self.scores - self.scores[:, :1]) - np.log(self.total)
        return found


def top_scores(count: int, scores: Array) -> TopScores:
    """The `count` best of each row of scores (rows, tokens), float32; all of them where there are fewer tokens."""
    return TopScores(*_session().run(None, {"scores": scores, "count": np.array([min(count, scores.shape[1])])}))


# One thread: another thread pool would wait for the processors of the model's.
@functools.cache
def _session() -> InferenceSession:
    import onnx.parser

    options = SessionOptions()
    options.intra_op_num_threads = 1
    model = onnx.parser.parse_model(_MODEL)
    return InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
