"""How long a model and its quantised form run, in turns, so that both see the same machine."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from sardonyx.api.options.session_options import SessionOptions
from sardonyx.api.session import InferenceSession
from sardonyx.quantization.search.comparison import Feeds

_SECONDS = 1.0  # for each model, at least
_LEAST, _MOST = 5, 200  # runs of each


def medians(models: Sequence[Path], feeds: Feeds, options: SessionOptions) -> list[float]:
    """The median time of a run of each model with the same inputs, in seconds."""
    sessions = [InferenceSession(os.fspath(model), options) for model in models]
    inputs = dict(feeds)
    for session in sessions:
        session.run(None, inputs)
    times: list[list[float]] = [[] for _ in sessions]
    spent = 0.0
    while len(times[0]) < _LEAST or (spent < _SECONDS * len(sessions) and len(times[0]) < _MOST):
        for session, own in zip(sessions, times, strict=True):
            start = time.perf_counter()
            session.run(None, inputs)
            own.append(time.perf_counter() - start)
            spent += own[-1]
    return [statistics.median(own) for own in times]
