"""What a model says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from sardonyx.light_dataclass import dataclass

# What onnxruntime shows for a model without a version.
NO_VERSION = 2**63 - 1


@dataclass(eq=False, repr=False)
class ModelMetadata:
    """The texts and properties of a model file; empty texts where the file has none."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = NO_VERSION
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)
