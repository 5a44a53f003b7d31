"""Builds the wheel of `sardonyx-kernels`: compiles the packs, and says which versions they are for.

The environment variable SARDONYX_KERNELS_TARGETS names the targets, as `python -m kernels build` takes them; without it
they are for the machine that builds.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.metadata import version as installed_version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_TARGETS = "SARDONYX_KERNELS_TARGETS"
_CHECKOUT = Path(__file__).resolve().parent.parent


class Packs(BuildHookInterface):
    """The packs, as files of the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, str(_CHECKOUT))
        from kernels import building

        targets = building.wanted(os.environ.get(_TARGETS, "host").split())
        self._folder = TemporaryDirectory()
        for pack in building.build(Path(self._folder.name), targets):
            self.app.display_info(f"{pack.name}: {pack.kernels} kernels, {pack.nbytes / 1e6:.1f} MB")
            build_data["force_include"][str(pack.path)] = f"sardonyx_kernels/{pack.path.name}"
        build_data["tag"] = f"py3-none-{_platform({target.architecture for target in targets.values()})}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


def _platform(architectures: set[str]) -> str:
    """The platform in the wheel's name: that of this machine where all packs are for its architecture, else none."""
    own = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return own if all(own.endswith(one) for one in architectures) else "any"


class Versions(MetadataHookInterface):
    """What the kernels are for: code of another version of either would not be taken."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [
            f"sardonyx=={metadata['version']}",
            f"llvmlite=={installed_version('llvmlite')}",
        ]
