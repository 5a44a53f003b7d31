"""Models that generate, exported once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import Folders

# Kinds of files by the words behind a name: both decoders in one, none with caches, and one that gives attentions.
_MERGED, _WHOLE, _ATTENTIVE = "merged", "whole", "attentive"

GENERATORS = (
    "gpt2",
    "gpt2 whole",
    "llama",
    "t5",
    "t5 merged",
    "t5 whole",
    "bart",
    "m2m100 merged",
    "trocr",
    "whisper merged",
    "pix2struct",
)


class Generators:
    """Models by name, such as ``t5 merged``: ours over ONNX files, and PyTorch's with the same weights."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        """Ours."""
        return self._kept(name, lambda: self._class(name).from_pretrained(self.folder(name)))

    def pytorch(self, name: str) -> Any:
        """That of transformers."""
        kind = name.split()[0]
        return self._kept(f"{kind} in torch", lambda: self._pytorch(kind))

    def folder(self, name: str) -> Path:
        """The folder of the ONNX files, which are made when they are first asked for."""
        from tests.models.tasks import exports

        folder = self._root / name.replace(" ", "_")
        if (folder / "made").exists():
            return folder
        if exports.transformers.__version__.startswith("5"):
            pytest.skip(f"{folder} was not made by transformers 4, which exports the models of these tests")
        kind, *form = name.split()
        model = self.pytorch(kind)
        if kind in ("gpt2", "llama"):
            exports.save_decoder(model, folder, with_past=_WHOLE not in form)
        else:
            exports.save_encoder_decoder(
                model,
                folder,
                exports.read_by(kind),
                merged=_MERGED in form,
                caches=_WHOLE not in form,
                attentions=_ATTENTIVE in form,
            )
        if kind != "whisper":
            exports.tokenizer().save_pretrained(folder)
        (folder / "made").touch()
        return folder

    def _kept(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _class(self, name: str) -> Any:
        from sardonyx import models

        kinds = {
            "gpt2": "ORTModelForCausalLM",
            "llama": "ORTModelForCausalLM",
            "whisper": "ORTModelForSpeechSeq2Seq",
            "trocr": "ORTModelForVision2Seq",
            "pix2struct": "ORTModelForImageTextToText",
        }
        return getattr(models, kinds.get(name.split()[0], "ORTModelForSeq2SeqLM"))

    def _pytorch(self, kind: str) -> Any:
        from tests.models.tasks import exports

        make = getattr(exports, kind)
        model = make() if kind == "whisper" else make(len(exports.tokenizer()))
        # Another transformers draws weights in another order: those of the first one are kept.
        kept = self._root / f"{kind}_in_torch"
        if kept.exists():
            return type(model).from_pretrained(kept).eval()
        model.save_pretrained(kept)
        return model


@pytest.fixture(scope="session")
def generators(tiny: Folders) -> Generators:
    """Models that generate, by name."""
    return Generators(tiny.root / "generators")
