"""A list of values at the C level, as training frameworks pass them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sardonyx.api.values import element_types
from sardonyx.api.values.core_value import CoreValue, pointer_array
from sardonyx.api.values.device import CoreDevice, require_cpu


class OrtValueVector:
    """Values by position; tensors in it can be handed over through DLPack."""

    def __init__(self) -> None:
        self._values: list[CoreValue] = []

    def push_back(self, value: CoreValue | object, is_bool_tensor: bool = False) -> None:
        """Append a value of the C level, or the tensor of a DLPack capsule (a bool tensor of bytes if so said)."""
        self._values.append(value if isinstance(value, CoreValue) else CoreValue.from_dlpack(value, is_bool_tensor))

    def push_back_batch(
        self,
        tensors: Sequence[object],
        addresses: Sequence[int],
        kinds: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        devices: Sequence[CoreDevice],
    ) -> None:
        """Append tensors over foreign memory; the objects in `tensors` own it and are kept alive."""
        for owner, address, kind, shape, device in zip(tensors, addresses, kinds, shapes, devices, strict=True):
            require_cpu(device)
            array = pointer_array(address, element_types.requested(kind), shape)
            self._values.append(CoreValue(array, owner=owner))

    def reserve(self, count: int) -> None:
        """Accepted; a Python list needs no room in advance."""

    def shrink_to_fit(self) -> None:
        """Accepted; a Python list keeps no room to speak of."""

    def bool_tensor_indices(self) -> list[int]:
        """Where the bool tensors are, which `to_dlpacks` hands over as bytes."""
        return [
            index
            for index, value in enumerate(self._values)
            if value.is_tensor() and value.element_type() == element_types.BOOL
        ]

    def dlpack_at(self, index: int) -> object:
        return self._values[index].to_dlpack()

    def element_type_at(self, index: int) -> int:
        return self._values[index].element_type()

    def to_dlpacks(self, to_tensor: Callable[[object], Any] | None) -> list[Any]:
        """Each tensor's capsule, or what `to_tensor` makes of it."""
        capsules = [value.to_dlpack() for value in self._values]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> CoreValue:
        return self._values[index]

    def __setitem__(self, index: int, value: CoreValue) -> None:
        self._values[index] = value

    def __iter__(self) -> Iterator[CoreValue]:
        return iter(self._values)

    def replace(self, values: Sequence[CoreValue]) -> None:
        """Hold `values` instead of what is here."""
        self._values[:] = values
