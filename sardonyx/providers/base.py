"""The interface of an execution provider."""

from __future__ import annotations

import abc
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sardonyx.providers.memory import Allocator, HostAllocator
from sardonyx.providers.options import NoOptions, option_texts, parse_options

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.compiler.planner import Compilation
    from sardonyx.graph.partition import Claims, Partition
    from sardonyx.ops.framework.inference import Inference
    from sardonyx.runtime.native.waits import Waits
    from sardonyx.runtime.plan import Step


class ExecutionProvider(abc.ABC):
    """Runs the nodes that it claims. One object serves one session.

    A provider is registered as an entry point in the group ``sardonyx.execution_providers`` under its name.
    """

    name: ClassVar[str]

    # A dataclass whose fields are the provider's options; see `sardonyx.providers.options`.
    options_type: ClassVar[type[Any]] = NoOptions

    def __init__(self, options: Mapping[str, str]) -> None:
        """Take the caller's options, all of them strings; ValueError for an unknown key or a bad value."""
        self.options = parse_options(self.name, self.options_type, options)

    @classmethod
    def is_available(cls) -> str | None:
        """None where the provider can run here, else the reason why not."""
        return None

    @abc.abstractmethod
    def claim(self, graph: ir.Graph, inference: Inference) -> Claims:
        """The nodes of `graph` (not of its subgraphs) that this provider runs and those it declines, with reasons."""

    @abc.abstractmethod
    def compile(self, partition: Partition, compilation: Compilation) -> list[Step]:
        """The steps of a partition of claimed nodes, in order, over the slots of `compilation`."""

    def allocator(self, device: str = "cpu") -> Allocator:
        """What gives memory on `device` (``cpu``, or a device of this provider); ValueError for any other."""
        if device != "cpu":
            raise ValueError(f"{self.name} has no memory on device '{device}'; it has 'cpu'")
        return HostAllocator()

    def release_memory(self) -> None:
        """Give memory that is kept for later runs back to the system; a provider that keeps none does nothing."""
        return

    def end_session(self) -> None:
        """The session is gone: end its threads and give its memory back, whoever still has parts of it."""
        return

    @property
    def waits(self) -> Waits | None:
        """The waits of the session's runs for what compiles; None where this provider compiles nothing in runs."""
        return None

    def code_bytes(self, addresses: Collection[int]) -> int:
        """Bytes of machine code of those functions of native plans, by their addresses, that are this provider's."""
        return 0

    def provider_options(self) -> dict[str, str]:
        """What `session.get_provider_options()` shows: every option with its value."""
        return option_texts(self.options)
