"""What a session makes of a decoder beside its other passes: caches in place, one of two branches, the last logits, the
likeliest tokens.

`choose` is for the model as it was loaded, `rewrite_decoder` comes after its other passes.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.inference import Inference, infer_model
from sardonyx.passes.base import Level, PassReport, Settings
from sardonyx.passes.caches.branch import USE_CACHE, take_branch
from sardonyx.passes.caches.greedy_tokens import NAME as GREEDY
from sardonyx.passes.caches.greedy_tokens import add_greedy_tokens
from sardonyx.passes.caches.in_place import keep_in_place, prepare
from sardonyx.passes.caches.last_logits import NAME as LAST_LOGITS
from sardonyx.passes.caches.last_logits import keep_last
from sardonyx.passes.caches.lengths import NAME as IN_PLACE
from sardonyx.passes.caches.pairs import DeclinedError


@dataclass(frozen=True)
class DecoderChoice:
    """What a caller wants of a decoder.

    With `in_place`, caches of one capacity are written in place; `past` is the name of their length in the model. With
    `uses_cache`, one branch of a model with two is taken. With `last_logits`, those of the last position alone are
    made; with `greedy_tokens`, the model gives the likeliest token of each position, too. `declined` tells by the
    name of the rewrite what could not be done, and why.
    """

    in_place: bool = False
    uses_cache: bool | None = None
    last_logits: bool = False
    greedy_tokens: bool = False
    past: str = ""
    declined: tuple[tuple[str, str], ...] = ()

    def without(self, rewrite: str, reason: object) -> DecoderChoice:
        """The same where a rewrite could not be done."""
        return replace(self, declined=(*self.declined, (rewrite, str(reason))))


AS_THEY_ARE = DecoderChoice()


def choose(model: ir.Model, choice: DecoderChoice) -> DecoderChoice:
    """Take a branch, and let all pasts have one length; DeclinedError where no cache can be written in place."""
    if choice.uses_cache is not None:
        try:
            take_branch(model, choice.uses_cache)
        except DeclinedError as declined:
            choice = choice.without(USE_CACHE, declined)
    return replace(choice, past=prepare(model)) if choice.in_place else choice


def rewrite_decoder(
    model: ir.Model, inference: Inference, choice: DecoderChoice, settings: Settings, passes: list[PassReport]
) -> Inference:
    """Rewrite a model after its other passes, and report that behind them; what is known of it then.

    DeclinedError for caches that cannot be written in place, in the middle of the rewrite.
    """
    if choice.last_logits:
        try:
            keep_last(model, inference)
            passes.append(PassReport(LAST_LOGITS, Level.BASIC, 1))
            inference = infer_model(model)
        except DeclinedError as declined:
            choice = choice.without(LAST_LOGITS, declined)
    if choice.greedy_tokens:
        try:
            add_greedy_tokens(model, inference)
            passes.append(PassReport(GREEDY, Level.BASIC, 1))
            inference = infer_model(model)
        except DeclinedError as declined:
            choice = choice.without(GREEDY, declined)
    if choice.past:
        inference, caches = keep_in_place(model, inference, choice.past, settings)
        passes.append(PassReport(IN_PLACE, Level.BASIC, caches))
    passes.extend(PassReport(name, Level.BASIC, 0, (reason,)) for name, reason in choice.declined)
    return inference
