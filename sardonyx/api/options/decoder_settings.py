"""What the session config says of decoders: caches in place, the branch of a merged one, which logits and tokens are
made."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.api.options.config_keys import is_on
from sardonyx.passes.caches.decoder import DecoderChoice

CACHES_IN_PLACE = "sardonyx.caches_in_place"
_BRANCH = "sardonyx.use_cache_branch"
_LAST_LOGITS = "sardonyx.last_logits"
_GREEDY_TOKENS = "sardonyx.greedy_tokens"


def decoder_choice(config: Mapping[str, str]) -> DecoderChoice:
    """What a session makes of a decoder."""
    branch = config.get(_BRANCH, "")
    return DecoderChoice(
        is_on(config, CACHES_IN_PLACE),
        branch == "1" if branch else None,
        is_on(config, _LAST_LOGITS),
        is_on(config, _GREEDY_TOKENS),
    )
