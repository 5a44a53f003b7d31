"""The second moments of what products read, summed up while a model runs on calibration data."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from sardonyx.api.session import InferenceSession
from sardonyx.quantization.refusal import InvalidQuantization
from sardonyx.transformers.large_weights import write_model

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

# Bytes of sums that are held at once: for more, the data pass through the model again.
_MOST_BYTES = 1 << 30


def samples(reader: Any, most: int | None = None) -> list[Mapping[str, Any]]:
    """The feeds of a calibration reader, or of an iterable of feeds or of pairs of a feed and a label.

    `InvalidQuantization` for what gives none.
    """
    if reader is None:
        raise InvalidQuantization(
            "GPTQ needs calibration data: pass a CalibrationDataReader as calibration_data_reader, or take a "
            "method without data (DefaultWeightOnlyQuantConfig, KQuantWeightOnlyQuantConfig, HQQWeightOnlyQuantConfig)"
        )
    found: list[Mapping[str, Any]] = []
    for feed in each_sample(reader):
        if most is not None and len(found) >= most:
            break
        found.append(feed)
    if not found:
        raise InvalidQuantization("The calibration reader gives no data: it is empty, or it was read before")
    return found


def each_sample(reader: Any) -> Iterator[Mapping[str, Any]]:
    """The feeds of a calibration reader, or of an iterable, one after the other."""
    get_next = getattr(reader, "get_next", None)
    feeds = iter(reader) if get_next is None else iter(get_next, None)
    for given in feeds:
        feed = given[0] if isinstance(given, tuple) else given
        if not isinstance(feed, Mapping):
            raise InvalidQuantization(
                f"The calibration reader must give dicts from names of inputs to arrays, not {type(feed).__name__}"
            )
        yield feed


@contextmanager
def on_disk(source: str | Path | ModelProto) -> Iterator[str]:
    """The path of a model; a message is written to a file for as long."""
    if isinstance(source, ModelProto):
        with tempfile.TemporaryDirectory(prefix="sardonyx-") as folder:
            path = Path(folder) / "model.onnx"
            write_model(source, path, external=True)
            yield str(path)
    else:
        yield str(source)


def second_moments(
    source: str | Path | ModelProto, feeds: Sequence[Mapping[str, Any]], sizes: Mapping[str, int]
) -> Iterator[tuple[str, Array]]:
    """The mean of x x^T over all vectors x of each value named in `sizes`, which gives their length; in float64.

    What is held at once is limited: the model runs on the data again for each group of values. `InvalidQuantization`
    where a value is never of that length, holds NaN or infinite numbers, or has no vectors at all.
    """
    with on_disk(source) as path:
        for names in _groups(sizes):
            made = [name for name in names if name not in feeds[0]]
            session = InferenceSession(path, extra_outputs=made)
            sums = {name: np.zeros((sizes[name], sizes[name])) for name in names}
            counts = dict.fromkeys(names, 0)
            for feed in feeds:
                values = dict(zip(made, session.run(made, feed), strict=True)) if made else {}
                for name in names:
                    counts[name] += _add(sums[name], name, np.asarray(values[name] if name in values else feed[name]))
            for name in names:
                if not counts[name]:
                    raise InvalidQuantization(f"The calibration data give no vectors of '{name}': all are empty")
                logger.debug("second moment of %s from %d vectors", name, counts[name])
                yield name, sums.pop(name) / counts[name]


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    group: list[str] = []
    held = 0
    for name, size in sizes.items():
        if group and held + 8 * size * size > _MOST_BYTES:
            yield group
            group, held = [], 0
        group.append(name)
        held += 8 * size * size
    if group:
        yield group


def _add(total: Array, name: str, value: Array) -> int:
    """Add the products of the vectors along the last axis of a value: how many there are."""
    if value.ndim == 0 or value.shape[-1] != len(total):
        raise InvalidQuantization(f"Value '{name}' has shape {value.shape}, but its weight has {len(total)} rows")
    vectors = np.ascontiguousarray(value.reshape(-1, len(total)), np.float32)
    product = vectors.T @ vectors
    if not np.isfinite(product).all():
        raise InvalidQuantization(
            f"The calibration data make NaN or infinite numbers of '{name}': look for such numbers in them"
        )
    total += product
    return len(vectors)
