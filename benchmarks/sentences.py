"""Vectors of a thousand sentences of mixed length by MiniLM, with its real weights.

    python -m benchmarks.sentences [--threads 2] [--texts 1000] [--rounds 3] [--ways …] [--json FILE]

`sentence-transformers` is that package on PyTorch with its usual batches: 32 texts, sorted by their characters.
`fastembed` is how that package uses onnxruntime: batches of 256 texts in the caller's order, each padded to its longest
text. `sardonyx` is `sardonyx.models.SentenceEncoder`. All make the same vectors of the same texts, tokens and all; the
ways take turns, and a first call of each does not count.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import isolated, machine, minilm, options, report
from benchmarks.accuracy.sentences import reference
from benchmarks.tables import Column, Table
from benchmarks.turns import timed

TEXTS = 1000
ROUNDS = 3
OURS = "sardonyx"
PAUSE_SECONDS = 0.2  # until the threads of the way before have stopped spinning
_FASTEMBED_BATCH = 256
_TOLERANCE = 1e-5  # of vectors of length 1

Encode = Callable[[list[str]], np.ndarray]

TABLE = Table(
    (
        Column("way", "way", width=21),
        Column("thr", "threads", "d", 3),
        Column("median s", "seconds", ".3f", 9),
        Column("min s", "least", ".3f", 8),
        Column("texts/s", "rate", ".0f", 8),
        Column("over", "ratio", ".2f", 6),
    )
)


@dataclass
class Row:
    """Seconds for all texts; `ratio` is this way's median over ours."""

    way: str
    threads: int
    error: str = ""
    seconds: float = 0.0
    least: float = 0.0
    rate: float = 0.0
    ratio: float = 0.0


def main() -> None:
    parser = options.parser("sentences", __doc__)
    options.add_threads(parser, (2,))
    parser.add_argument("--texts", type=int, default=TEXTS, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed calls of each; default: %(default)s")
    parser.add_argument("--ways", type=ways, default=tuple(WAYS), help="comma-separated; default: all")
    options.add_json(parser)
    chosen = parser.parse_args()
    print(machine.line())
    kept = report.Report(chosen.json)
    kept.put("sentences", measure_all(chosen.threads, chosen.texts, chosen.rounds, chosen.ways))


def ways(text: str) -> tuple[str, ...]:
    """Names of ways, ours among them: the others are compared with it."""
    found = options.names(text)
    for name in found:
        if name not in WAYS:
            raise argparse.ArgumentTypeError(f"no way {name!r}; there are {', '.join(WAYS)}")
    return tuple(dict.fromkeys([OURS, *found]))


def measure_all(
    threads: tuple[int, ...], texts: int = TEXTS, rounds: int = ROUNDS, names: tuple[str, ...] | None = None
) -> Iterator[Row]:
    """Rows of all ways, each printed when it is there."""
    print(f"\n{texts} sentences\n\n{TABLE.head()}")
    folder = minilm.ensure()
    for count in threads:
        try:
            rows = isolated.call(measure, folder, count, texts, rounds, names or tuple(WAYS))
        except Exception as error:  # a failure is a result, not the end of the benchmark
            rows = [Row(way, count, isolated.reason(error)) for way in names or WAYS]
        for row in rows:
            print(TABLE.line(asdict(row)), flush=True)
            yield row


def measure(folder: Path, threads: int, texts: int, rounds: int, names: tuple[str, ...]) -> list[Row]:
    """The ways, in this process."""
    sentences = chosen_texts(texts)
    rows = {way: Row(way, threads) for way in names}
    encoders: dict[str, Encode] = {}
    vectors = {}
    for way in names:
        try:
            encoders[way] = WAYS[way](folder, threads)
            vectors[way] = encoders[way](sentences)
        except Exception as error:  # a way that fails is a result, not the end of the benchmark
            rows[way].error = isolated.reason(error)
    for way, found in vectors.items():
        if (gap := float(np.abs(found - vectors[OURS]).max())) > _TOLERANCE:
            raise ValueError(f"the vectors of {way} are {gap:.1e} from ours")
    taken: dict[str, list[float]] = {way: [] for way in vectors}
    for _ in range(rounds):  # the call for the vectors has woken everything up
        for way, samples in taken.items():
            time.sleep(PAUSE_SECONDS)
            samples.append(timed(partial(encoders[way], sentences))[0])
    ours = statistics.median(taken[OURS])
    for way, samples in taken.items():
        row = rows[way]
        row.seconds, row.least = statistics.median(samples), min(samples)
        row.rate, row.ratio = texts / row.seconds, row.seconds / ours
    return list(rows.values())


def chosen_texts(count: int) -> list[str]:
    """Sentences of Python's reference in an order of chance; those of mixed length are as they come."""
    sentences = reference()
    order = np.random.default_rng(5).permutation(len(sentences))
    return [sentences[at] for at in np.resize(order, count)]


def sardonyx(folder: Path, threads: int) -> Encode:
    from sardonyx import SessionOptions
    from sardonyx.models import SentenceEncoder

    settings = SessionOptions()
    settings.intra_op_num_threads = threads
    return SentenceEncoder(folder, session_options=settings).encode


def sentence_transformers(folder: Path, threads: int) -> Encode:
    import torch

    if importlib.util.find_spec("torchvision") is not None:
        importlib.import_module("benchmarks.zoo.architectures")  # torchvision, as transformers needs it
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False)


def fastembed(folder: Path, threads: int) -> Encode:
    """The loop of FastEmbed 0.9 for a model with mean pooling, whose vectors are scaled to length 1."""
    import onnxruntime
    from tokenizers import Tokenizer

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.intra_op_num_threads = settings.inter_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(folder / "onnx" / "model.onnx"), settings, providers=["CPUExecutionProvider"]
    )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()

    def encode(texts: list[str]) -> np.ndarray:
        found = []
        for at in range(0, len(texts), _FASTEMBED_BATCH):
            encoded = tokenizer.encode_batch(texts[at : at + _FASTEMBED_BATCH])
            ids = np.array([one.ids for one in encoded], np.int64)
            mask = np.array([one.attention_mask for one in encoded], np.int64)
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            states = session.run(None, feeds)[0]
            known = np.broadcast_to(mask[..., None], states.shape)
            means = (states * known).sum(1) / np.maximum(known.sum(1), 1e-9)
            lengths = np.linalg.norm(means, axis=1, keepdims=True)
            found.append((means / np.maximum(lengths, 1e-12)).astype(states.dtype))
        return np.concatenate(found)

    return encode


WAYS: dict[str, Callable[[Path, int], Encode]] = {
    OURS: sardonyx,
    "sentence-transformers": sentence_transformers,
    "fastembed": fastembed,
}


if __name__ == "__main__":
    main()
