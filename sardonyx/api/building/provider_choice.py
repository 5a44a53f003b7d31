"""From what a caller passes as `providers` to names with options, and what happens when that fails."""

from __future__ import annotations

import collections.abc
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from sardonyx import errors
from sardonyx.api.enums import OrtExecutionProviderDevicePolicy
from sardonyx.providers import registry
from sardonyx.providers.base import ExecutionProvider

MOST_DEVICES = 8  # that a policy may choose

_TENSORRT = "TensorrtExecutionProvider"
_TENSORRT_RTX = "NvTensorRTRTXExecutionProvider"
_CUDA = "CUDAExecutionProvider"


def available_for(providers: Any) -> list[str]:
    """The available providers that a caller's are compared with: all of them, for which every installed package is
    looked at, unless only the CPU's is asked for."""
    return [registry.CPU] if providers is None or providers == [registry.CPU] else registry.available()


def normalize(
    providers: Any, provider_options: Any, available_provider_names: Sequence[str]
) -> tuple[list[str], list[dict[str, str]]]:
    """Names in order with the options of each, all texts.

    Takes what `InferenceSession` takes: None, a sequence of names or (name, options) tuples, options in a second
    sequence. ValueError for any other form; a UserWarning for a name that is not available or comes twice. A single
    name instead of a sequence counts as a sequence of one.
    """
    if providers is None:
        return [], []
    if isinstance(providers, str):
        providers = [providers]
    if not isinstance(providers, collections.abc.Sequence):
        raise ValueError("'providers' should be a sequence.")
    chosen: dict[str, dict[str, str]] = {}
    for name, options in _pairs(providers, provider_options):
        if name not in available_provider_names:
            names = ", ".join(available_provider_names)
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names.Available providers: '{names}'",
                UserWarning,
                stacklevel=4,
            )
        if name in chosen:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", UserWarning, stacklevel=4)
            continue
        chosen[name] = {str(key): str(value) for key, value in options.items()}
    return list(chosen), list(chosen.values())


def _pairs(providers: Sequence[Any], provider_options: Any) -> list[tuple[str, Mapping[Any, Any]]]:
    """The providers with their options, from either of the two ways in which options are passed."""
    if provider_options is None:
        return [_pair(item) for item in providers]
    if not isinstance(provider_options, collections.abc.Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if len(providers) != len(provider_options):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    if not all(isinstance(item, str) for item in providers):
        raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
    if not all(isinstance(item, dict) for item in provider_options):
        raise ValueError("'provider_options' values must be dicts.")
    return list(zip(providers, provider_options, strict=True))


def _pair(item: Any) -> tuple[str, Mapping[Any, Any]]:
    if isinstance(item, str):
        return item, {}
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], dict):
        return item
    raise ValueError("'providers' values must be either strings or (string, dict) tuples.")


def create(names: Sequence[str], options: Sequence[Mapping[str, str]], no_fallback: bool) -> list[ExecutionProvider]:
    """The providers of a session, in priority; the CPU provider is added where the caller did not name it.

    Names that cannot run here are left out. RuntimeError for a name that nobody knows, ValueError for a bad option,
    InvalidArgument where the CPU provider is named although falling back to it is disabled (`no_fallback`).
    """
    if no_fallback and registry.CPU in names:
        raise errors.InvalidArgument(
            "Conflicting session configuration: explicitly added the CPU EP to the session, but also disabled "
            "fallback to the CPU EP via session configuration options."
        )
    known, available = registry.known(), registry.available()
    made: list[ExecutionProvider] = []
    for name, given in zip(names, options, strict=True):
        if name not in known:
            raise RuntimeError(f"Unknown Provider Type: {name}")
        if name in available:
            made.append(registry.create(name, given))
    if registry.CPU not in names:
        made.append(registry.create(registry.CPU, {}))
    return made


def by_policy(policy: Any, metadata: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The provider that a policy of `SessionOptions` prefers.

    A function is asked with the devices there are and the model's `metadata`; `Fail` where it raises, or selects
    nothing, too much, or something else than devices.
    """
    from sardonyx.api.building.ep_devices import OrtEpDevice, get_ep_devices

    devices = get_ep_devices()
    if callable(policy) and not isinstance(policy, OrtExecutionProviderDevicePolicy):
        try:
            devices = list(policy(devices, dict(metadata), {}, MOST_DEVICES))
        except Exception as error:  # whatever a caller's function raises
            raise errors.Fail(f"EP selection delegate failed: {type(error).__name__}: {error}") from error
        if not devices:
            raise errors.Fail("EP selection delegate did not select anything.")
        if len(devices) > MOST_DEVICES:
            raise errors.Fail(
                f"EP selection delegate failed: selected too many EP devices ({len(devices)}). "
                f"The limit is {MOST_DEVICES} EP devices."
            )
        strange = [device for device in devices if not isinstance(device, OrtEpDevice)]
        if strange:
            raise errors.Fail(f"EP selection delegate failed: it selected {strange[0]!r}, which is no OrtEpDevice")
    return {device.ep_name: {} for device in devices[:1]}


def fallback_providers(providers: Any, available: Sequence[str]) -> list[str]:
    """What a session retries with after its providers failed: the CPU, after CUDA where TensorRT was asked for.

    ValueError for two providers that exclude each other, which no other choice could mend.
    """
    asked = [item[0] if isinstance(item, tuple) and item else item for item in providers or ()]
    if _TENSORRT in asked and _TENSORRT_RTX in asked:
        raise ValueError(f"Cannot enable both '{_TENSORRT}' and '{_TENSORRT_RTX}' in the same session.")
    if _TENSORRT in available and _TENSORRT in asked and _CUDA in asked:
        return [_CUDA, registry.CPU]
    return [registry.CPU]


def announce_fallback(error: Exception, providers: Any, fallback: Sequence[str]) -> None:
    """Say on stdout, in the form that callers know, that providers failed and what is tried instead."""
    print("*************** EP Error ***************")
    print(f"EP Error {error} when using {providers}")
    print(f"Falling back to {list(fallback)} and retrying.")
    print("****************************************")
