"""Nodes that hold a program for somebody else's device say so when the model is loaded."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.microsoft import peer


def test_ep_context() -> None:
    with pytest.raises(errors.NotImplemented, match="compiled for QNN; load the model from which it was compiled"):
        peer.run("EPContext", [np.zeros(2, np.float32)], 1, {"source": "QNN", "ep_cache_context": "blob"})


def test_snpe() -> None:
    with pytest.raises(errors.NotImplemented, match="Qualcomm's SNPE"):
        peer.run("Snpe", [np.zeros(2, np.float32)], 1, {"DLC": "blob"})
