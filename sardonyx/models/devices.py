"""Where models run: on the CPU, whatever a device is called by."""

from __future__ import annotations

from typing import Any

from sardonyx import errors

_CPU_NUMBER = -1  # of transformers' pipelines


def check_device(device: Any) -> None:
    """Nothing for the CPU, by its name, its `torch.device`, or as -1; `errors.InvalidArgument` for other devices."""
    kind = getattr(device, "type", device)
    if isinstance(kind, str) and kind.partition(":")[0].lower() == "cpu":
        return
    if isinstance(kind, int) and not isinstance(kind, bool):
        if kind == _CPU_NUMBER:
            return
        device = f"{device}, a GPU,"  # as torch counts them
    raise errors.InvalidArgument(f"The device {device} is not there: models run on the CPU here; say 'cpu', or nothing")


def asked_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The device among the arguments of `to`, which torch's modules take with a dtype or without; None for none."""
    if "device" in kwargs:
        return kwargs["device"]
    return next((value for value in args if isinstance(value, (str, int)) or hasattr(value, "index")), None)
