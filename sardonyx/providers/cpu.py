"""The CPU provider: it runs everything, as native code where there is a kernel and on the host where there is none."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from sardonyx.providers.base import ExecutionProvider

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.compiler.llvm.library import KernelLibrary
    from sardonyx.compiler.native_resources import NativeResources
    from sardonyx.compiler.planner import Compilation
    from sardonyx.graph.partition import Claims, Partition
    from sardonyx.ops.framework.inference import Inference
    from sardonyx.runtime.native.waits import Waits
    from sardonyx.runtime.plan import Step
    from sardonyx.runtime.settings import RunSettings


class CPUExecutionProvider(ExecutionProvider):
    """Takes every node; its options are accepted and have no effect, as in onnxruntime.

    What compiles is imported where a model is compiled: sessions from engines do without.
    """

    name = "CPUExecutionProvider"

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({})
        self._resources: NativeResources | None = None

    def claim(self, graph: ir.Graph, inference: Inference) -> Claims:
        from sardonyx.graph.partition import Claims

        return Claims(dict.fromkeys(graph, "the CPU provider runs every operator"))

    def release_memory(self) -> None:
        if self._resources is not None:
            self._resources.release_memory()

    def end_session(self) -> None:
        if self._resources is not None:
            self._resources.end_session()

    def code_bytes(self, addresses: Collection[int]) -> int:
        return 0 if self._resources is None else self._resources.library.code_bytes(addresses)

    @property
    def waits(self) -> Waits | None:
        return None if self._resources is None else self._resources.waits

    @property
    def library(self) -> KernelLibrary:
        """The kernels of its session, which has native steps."""
        assert self._resources is not None
        return self._resources.library

    @property
    def settings(self) -> RunSettings:
        """How its session runs its native steps."""
        assert self._resources is not None
        return self._resources.settings

    def resources(self, settings: RunSettings) -> NativeResources:
        """What the native steps of its session share, made when it is asked for the first time."""
        from sardonyx.compiler.native_resources import NativeResources

        if self._resources is None:
            self._resources = NativeResources(settings)
        return self._resources

    def compile(self, partition: Partition, compilation: Compilation) -> list[Step]:
        from sardonyx.compiler.partition_steps import partition_steps

        is_native = compilation.settings.kernels != "numpy"
        resources = self.resources(compilation.settings) if is_native else None
        return partition_steps(partition, compilation, self.name, resources)
