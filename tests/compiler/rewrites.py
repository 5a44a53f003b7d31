"""The rewrites that a session leaves out so that its plan is made of the model as it is written."""

from __future__ import annotations

from sardonyx.passes.base import Level
from sardonyx.passes.pipeline import passes_up_to

ALL_REWRITES = tuple(one.name for one in passes_up_to(Level.ALL))
