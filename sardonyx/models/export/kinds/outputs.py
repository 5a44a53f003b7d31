"""What a whole model gives, by task: the names of outputs that are kept, as transformers calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx import errors

_LOGITS = ("logits",)
_KEPT: Mapping[str, tuple[str, ...]] = {
    "question-answering": ("start_logits", "end_logits"),
    "object-detection": ("logits", "pred_boxes"),
    "zero-shot-image-classification": ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds"),
    # Of models without a head, and of those that compare pictures with texts.
    "feature-extraction": (
        "last_hidden_state",
        "pooler_output",
        "logits_per_image",
        "logits_per_text",
        "text_embeds",
        "image_embeds",
    ),
}


def kept(task: str, found: Any) -> dict[str, Any]:
    """The outputs of a run that belong to the task; NotImplemented where there are none."""
    outputs = {name: found[name] for name in _KEPT.get(task, _LOGITS) if found.get(name) is not None}
    if not outputs:
        raise errors.NotImplemented(f"the model gives {', '.join(found)}, which is not what {task} is")
    return outputs
