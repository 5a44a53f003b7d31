"""Which ONNX file of a folder is which part of a model, by the names that exporters give them.

Optimum writes ``model.onnx``, or ``encoder_model.onnx``, ``decoder_model.onnx``, ``decoder_with_past_model.onnx`` and
``decoder_model_merged.onnx``. transformers.js looks for the same in ``onnx/``, with the precision behind the name:
``model_quantized.onnx``, ``_fp16``, ``_q4f16``. sentence-transformers adds what the file was made for:
``onnx/model_qint8_avx512_vnni.onnx``, ``onnx/model_O3.onnx``. onnxruntime-genai names its files in
``genai_config.json``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from sardonyx import errors

MODEL = "model"
ENCODER = "encoder"
DECODER = "decoder"
DECODER_WITH_PAST = "decoder_with_past"
DECODER_MERGED = "decoder_merged"

# What the file of a part is called, without precision and ending, the usual name first.
_NAMES: dict[str, tuple[str, ...]] = {
    MODEL: ("model",),
    ENCODER: ("encoder_model", "encoder"),
    DECODER: ("decoder_model", "decoder"),
    DECODER_WITH_PAST: ("decoder_with_past_model", "decoder_with_past"),
    DECODER_MERGED: ("decoder_model_merged", "decoder_merged"),
    "text_encoder": ("text_model", "text_encoder"),
    "vision_encoder": ("vision_model", "vision_encoder"),
    "audio_encoder": ("audio_model", "audio_encoder"),
    "embed_tokens": ("embed_tokens",),
}
ROLES = tuple(_NAMES)
_ROLE_OF = {name: role for role, names in _NAMES.items() for name in names}
_MOST_SHOWN = 12


def choose(
    names: Sequence[str],
    role: str,
    where: str,
    file_name: str | None = None,
    argument: str = "file_name",
    named: Mapping[str, str] | None = None,
) -> str | None:
    """The ONNX file of a part among the files of a folder (paths relative to it, with slashes); None for no candidate.

    `file_name` decides where it is given: a name or a path, else `errors.NoSuchFile`, which lists those that are there.
    Then what a configuration of the folder says (`named`, by role), then the usual name, the one nearest to the top,
    then the only one with a suffix. `errors.InvalidArgument` for several, which lists them and names `argument`.
    """
    models = [name for name in names if name.endswith(".onnx")]
    if file_name is not None:
        return _given(models, names, file_name, where, argument)
    if named and role in named:
        return _given(models, names, named[role], where, argument)
    plain = [name for usual in _NAMES[role] for name in models if PurePosixPath(name).stem == usual]
    if plain:
        return _one(_uppermost(plain), where, argument)
    return _one([name for name in models if role_of(name) == role] or _others(models, role), where, argument)


def role_of(name: str) -> str | None:
    """The part that a file is by its name, whatever its precision; None for a name of another kind."""
    stem = PurePosixPath(name).stem
    found = [usual for usual in _ROLE_OF if stem == usual or stem.startswith(f"{usual}_")]
    return _ROLE_OF[max(found, key=len)] if found else None


def listed(names: Iterable[str]) -> str:
    """Names for an error, not too many of them."""
    names = sorted(names)
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"{', '.join(names[:_MOST_SHOWN])}{more}" if names else "none"


def _others(models: Sequence[str], role: str) -> list[str]:
    """Candidates among the files of other names: for a whole model any, for a part those that say so."""
    rest = [name for name in models if role_of(name) is None]
    return rest if role == MODEL else [name for name in rest if _spoken_role(PurePosixPath(name).stem) == role]


def _spoken_role(stem: str) -> str | None:
    if "decoder" in stem:
        return DECODER_MERGED if "merged" in stem else DECODER_WITH_PAST if "with_past" in stem else DECODER
    return ENCODER if "encoder" in stem else None


def _given(models: Sequence[str], names: Sequence[str], wanted: str, where: str, argument: str) -> str:
    if not isinstance(wanted, str | os.PathLike) or not os.fspath(wanted):
        raise errors.InvalidArgument(f"{argument} is the name of an ONNX file, and not {wanted!r}")
    wanted = PurePosixPath(wanted).as_posix()
    found = [name for name in names if name == wanted] or [
        name for name in names if PurePosixPath(name).name == wanted or name.endswith(f"/{wanted}")
    ]
    if not found:
        raise errors.NoSuchFile(f"There is no file {wanted} in {where}. Its ONNX files are {listed(models)}")
    chosen = _one(_uppermost(found), where, argument)
    assert chosen is not None
    return chosen


def _uppermost(names: Sequence[str]) -> list[str]:
    least = min(name.count("/") for name in names)
    return [name for name in names if name.count("/") == least]


def _one(candidates: Sequence[str], where: str, argument: str) -> str | None:
    if len(candidates) > 1:
        raise errors.InvalidArgument(
            f"{where} has several ONNX files for this: {listed(candidates)}. Say which one by {argument}="
        )
    return candidates[0] if candidates else None
