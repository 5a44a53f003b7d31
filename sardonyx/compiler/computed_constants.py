"""Constants that the model computes from others, as tensors of a plan: by native code where there is a kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from functools import partial

import numpy as np

from sardonyx.compiler.bound_step import Array, ComputedConstant
from sardonyx.compiler.kernels.convolution.scaled_filters import ScaleSpec, emit_scaled_filters
from sardonyx.compiler.llvm.library import KernelLibrary
from sardonyx.compiler.shared_constants import ConstantShares
from sardonyx.graph.computed_tensor import ComputedTensor, JoinedTensor, ScaledTensor
from sardonyx.graph.constants import tensor_array
from sardonyx.runtime.files.content_identity import content_identity
from sardonyx.runtime.memory.constant_memory import passing_empty
from sardonyx.runtime.memory.mapped_pages import release_pages

# Fewer bytes than this are scaled by one thread.
_SMALL = 1 << 20


def computed_constant(library: KernelLibrary, tensor: ComputedTensor) -> ComputedConstant:
    """The tensor of a plan for one of the model."""
    dtype, shape = tensor.dtype.numpy(), tensor.shape.numpy()
    compute: Callable[[], Array] = tensor.numpy
    if isinstance(tensor, ScaledTensor) and dtype == np.float32:
        compute = partial(_scaled, library, tensor)
    shares = ConstantShares(library.target.key)
    return ComputedConstant(compute, dtype, shape, partial(_identity, tensor), shares.hold)


def _identity(tensor: ComputedTensor) -> Hashable | None:
    """What tells the contents from others: those of what it is computed from."""
    if isinstance(tensor, JoinedTensor):
        parts = tensor.parts
        if any(isinstance(part, ComputedTensor) for part in parts):
            return None
        return "joined", tuple([content_identity(np.asarray(part.numpy())) for part in parts])
    if isinstance(tensor, ScaledTensor) and not isinstance(tensor.source, ComputedTensor):
        return "scaled", content_identity(tensor_array(tensor.source)), content_identity(np.asarray(tensor.factor))
    return None


def _scaled(library: KernelLibrary, tensor: ScaledTensor) -> Array:
    """What the tensor gives itself, by all processors."""
    filters = tensor_array(tensor.source)
    result = passing_empty(filters.shape, filters.dtype)
    if filters.size:
        factor = np.ascontiguousarray(tensor.factor, np.float64)
        words = (np.ascontiguousarray(filters), factor, result, filters[0].size)
        threads = min(os.cpu_count() or 1, len(filters)) if filters.nbytes > _SMALL else 1
        library.run(emit_scaled_filters, ScaleSpec(), words, len(filters), threads)
    release_pages(filters)
    return result
