"""What an explanation says: the steps of a run, what rewrites did, and why it is as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, field
from typing import Any, Literal

from sardonyx.light_dataclass import dataclass

# The troubles of onnxruntime's checklist.
Trouble = Literal[
    "fallback",
    "missing fusions",
    "thread contention",
    "fragmentation",
    "transfers",
    "initializers in inputs",
    "dynamic shapes",
]

# The passes that tidy up behind others: that they would do more is no gain by itself.
HOUSEKEEPING = frozenset({"RemoveUnused", "RemoveUnusedShapes"})


@dataclass(frozen=True)
class Row:
    """One step of a run.

    kind: ``native`` (a kernel), ``host`` (a call into Python, for `reason`), or ``numpy`` (a view or a kernel that
        NumPy computes, because nothing native surrounds it).
    provider: the execution provider that runs it.
    kernel, epilogue, detail: which kernel, what is applied to its results before they are stored, how it works here.
    chunks: the size of its grid. nodes: names of the user's nodes. operators: those of the rewritten model.
    rules: the rewrites that made those. flops, bytes: a run's operations, and what it reads and writes;
        `constant_bytes` of it belong to the model.
    predicted_us: the time that the machine's ceilings allow. measured_us: the median of the runs.
    body: where the step is inside a subgraph, the node and its attribute, as ``node/attribute/``; then `executions`
        says how often it runs in one run of the model, and all other figures are those of one time.
    """

    step: int
    kind: Literal["native", "host", "numpy"]
    kernel: str
    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    rules: tuple[str, ...] = ()
    epilogue: tuple[str, ...] = ()
    detail: str = ""
    chunks: int = 1
    flops: float = 0.0
    bytes: float = 0.0
    constant_bytes: float = 0.0
    predicted_us: float | None = None
    measured_us: float | None = None
    reason: str = ""
    body: str = ""
    executions: float = 1.0
    provider: str = "CPUExecutionProvider"

    @property
    def gflops(self) -> float | None:
        """Thousand millions of operations a second."""
        return self.flops / self.measured_us / 1e3 if self.measured_us else None

    @property
    def roofline(self) -> float | None:
        """The share of what the machine's ceilings allow."""
        return self.predicted_us / self.measured_us if self.measured_us and self.predicted_us is not None else None


@dataclass(frozen=True)
class Declined:
    """Places that a rewrite looked at and left alone: for the same reason, at these nodes."""

    rule: str
    reason: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Overridable:
    """Initializers that are inputs of the graph, so that callers may override them, and what that costs.

    names: theirs. nodes: those that read them. rewrites: how many changes more each pass would make, were they
        constants. packed_bytes: how much more of the model could be laid out for its kernels. steps: those of a run now
        and then. predicted_us: the same for its time, None where sizes depend on data.
    """

    names: tuple[str, ...]
    nodes: tuple[str, ...]
    rewrites: dict[str, int]
    packed_bytes: int
    steps: tuple[int, int]
    predicted_us: tuple[float, float] | None


@dataclass(frozen=True)
class OpenIfs:
    """Ifs that leave ranks open which the sizes of the inputs may tell, so that a session compiles its model once more
    for sizes that come for the second time.

    names: theirs. decided: those that the explained sizes leave none of; other ones wait for data. is_shown: whether
        the plan that is explained is the one for these sizes alone, and not the one for all sizes, which runs before.
        note: why it is not.
    """

    names: tuple[str, ...]
    decided: tuple[str, ...] = ()
    is_shown: bool = False
    note: str = ""


@dataclass(frozen=True)
class Coverage:
    """Of so many `sizes` that an engine was to have plans for, how many have one; `reason` says why others do not."""

    sizes: int
    covered: int
    reason: str


@dataclass(frozen=True)
class NewSizes:
    """What a session does where sizes of its inputs are new.

    engine: whether it begins from an engine, whose plans need no compiler. coverage: for how many sizes that has plans,
        by its profiles. waits: how many runs waited for what compiles, for `waited_ms` milliseconds together; meanwhile
        `kernels` were compiled or loaded. latest: each of the last of these runs in words.
    """

    engine: bool
    coverage: tuple[Coverage, ...]
    waits: int
    waited_ms: float
    kernels: int
    latest: tuple[str, ...]


@dataclass(frozen=True)
class Turned:
    """What a session would be with another value of one knob.

    steps: those of a run. predicted_us: the time that the machine's ceilings allow. measured_us: that of runs, where
        the session itself was measured; beside_us: that of the session's own runs, which took turns with them.
    arena_bytes, packed_bytes: as in `Explanation`. note: what there is to know beside that, or why there are no
        numbers.
    """

    value: str
    steps: int | None = None
    predicted_us: float | None = None
    measured_us: float | None = None
    beside_us: float | None = None
    arena_bytes: int | None = None
    packed_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Knob:
    """An option of the session: its value, what that did for this model, and what other values would do."""

    name: str
    value: str
    did: str
    turned: tuple[Turned, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """A trouble of the checklist: whether the session has it, by which evidence, at which of the user's nodes, and
    what helps."""

    name: Trouble
    found: bool
    evidence: str
    remedy: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Why:
    """What the knobs of a session did and would do, and its troubles, each of the checklist once."""

    knobs: tuple[Knob, ...]
    diagnoses: tuple[Diagnosis, ...]


@dataclass
class Explanation:
    """Everything of one model for one set of shapes.

    views, known: nodes that cost nothing in a run, because they only look at memory another way, or because their
        results follow from shapes; by operator.
    rewrites: how many changes each pass made. declined: what looked right to a pass and was left alone.
    arena_bytes, scratch_bytes: what one run needs for values between kernels, and each thread for itself.
    constant_bytes: what kernels read of the model; packed_bytes: how much of it was laid out anew for them.
    run_us: the median of whole runs, of which there were `runs`.
    overridable: initializers that callers may override, and which optimisations that costs; None where there are none.
    open_ifs: Ifs that ask for sizes, and what these decide; None where there are none.
    new_sizes: what the session does about new sizes, and how long its runs have waited for what compiles.
    why: what the knobs of the session did, and its troubles, where somebody asked for them.
    """

    inputs: dict[str, tuple[int, ...]]
    threads: int
    kernels: str
    ceilings: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    views: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    rewrites: dict[str, int] = field(default_factory=dict)
    declined: list[Declined] = field(default_factory=list)
    arena_bytes: int = 0
    scratch_bytes: int = 0
    constant_bytes: int = 0
    packed_bytes: int = 0
    runs: int = 0
    run_us: float | None = None
    overridable: Overridable | None = None
    open_ifs: OpenIfs | None = None
    new_sizes: NewSizes | None = None
    why: Why | None = None

    @property
    def totals(self) -> dict[str, float | None]:
        """The sums over all rows; of the measured times where there are any: a node's time includes its subgraphs'."""
        measured = [row.measured_us for row in self.rows if row.measured_us is not None and not row.body]
        return {
            "flops": sum(row.flops * row.executions for row in self.rows),
            "bytes": sum(row.bytes * row.executions for row in self.rows),
            "predicted_us": sum((row.predicted_us or 0.0) * row.executions for row in self.rows),
            "measured_us": sum(measured) if measured else None,
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything in the types of JSON."""
        rows = [asdict(row) | {"gflops": row.gflops, "roofline": row.roofline} for row in self.rows]
        return asdict(self) | {"rows": rows, "totals": self.totals}


def counted(count: int, what: str) -> str:
    """A number of things of a kind, as ``1 step`` or ``3 steps``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def abbreviated(names: Sequence[str]) -> str:
    """Several names as one: what they have in common, and how many they are."""
    if len(names) == 1:
        return names[0]
    for separator in ("/", "."):
        parts = [name.split(separator) for name in names]
        common = 0
        while common < min(map(len, parts)) - 1 and len({part[common] for part in parts}) == 1:
            common += 1
        if any(parts[0][:common]):
            return f"{separator.join(parts[0][:common])}{separator}* ({len(names)})"
    return f"{names[0]} … ({len(names)})"
