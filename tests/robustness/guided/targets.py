"""All targets of guided fuzzing, by name."""

from __future__ import annotations

from tests.robustness.guided.adapters import ADAPTER
from tests.robustness.guided.engines import KEPT, SEALED, UNTRUSTED
from tests.robustness.guided.models import CONTEXT, LOAD, WIRE
from tests.robustness.guided.notes import KERNEL, MACHINE, TRUST_RECORD
from tests.robustness.guided.packs import PACK
from tests.robustness.guided.target import Target

TARGETS: dict[str, Target] = {
    one.name: one
    for one in (WIRE, LOAD, CONTEXT, SEALED, UNTRUSTED, KEPT, TRUST_RECORD, MACHINE, KERNEL, PACK, ADAPTER)
}
