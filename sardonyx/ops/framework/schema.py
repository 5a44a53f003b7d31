"""What an operator may look like: arity, attributes and types, from ONNX's schemas or from our operator classes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal

import onnx
import onnx_ir as ir

from sardonyx.light_dataclass import dataclass
from sardonyx.ops.framework.operator import Operator, find_class, registered
from sardonyx.ops.framework.registry import load_families, load_family

# Domains whose operators ONNX itself defines.
ONNX_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training"})

# Operators that onnxruntime writes into the default domain at any version: it fuses them into models that it saves.
_FUSED_INTO_DEFAULT = frozenset({"LayerNormalization"})

_UNBOUNDED = 2**31 - 1

_ANNOTATED = {
    "int": ir.AttributeType.INT,
    "bool": ir.AttributeType.INT,
    "float": ir.AttributeType.FLOAT,
    "str": ir.AttributeType.STRING,
    "tuple[int, ...]": ir.AttributeType.INTS,
    "tuple[float, ...]": ir.AttributeType.FLOATS,
    "tuple[str, ...]": ir.AttributeType.STRINGS,
    "ir.Graph": ir.AttributeType.GRAPH,
    "ir.TensorProtocol": ir.AttributeType.TENSOR,
}

Kind = Literal["single", "optional", "variadic"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A formal input or output; `types` is empty where any type will do, `label` names a constraint that is shared."""

    name: str
    kind: Kind
    label: str = ""
    types: frozenset[str] = frozenset()
    homogeneous: bool = True  # of a variadic parameter: all its values have one type


@dataclass(frozen=True, slots=True)
class AttributeRule:
    """An attribute's type (None: not checked) and whether a node must have it."""

    type: ir.AttributeType | None
    required: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """The form of one operator at one version; `inputs` or `outputs` None: not declared, so not checked."""

    domain: str
    name: str
    since: int
    inputs: tuple[Parameter, ...] | None
    outputs: tuple[Parameter, ...] | None
    input_range: tuple[int, int]
    output_range: tuple[int, int]
    attributes: Mapping[str, AttributeRule]
    deprecated: bool = False


@functools.cache
def schema_of(domain: str, op_type: str, version: int) -> Schema | None:
    """The schema of an operator at a version of its domain; None where neither ONNX nor an operator class knows it."""
    try:
        return _from_onnx(onnx.defs.get_schema(op_type, version, domain))
    except onnx.defs.SchemaError:
        pass
    load_family(op_type, domain)
    if domain in ONNX_DOMAINS and op_type not in _FUSED_INTO_DEFAULT and _in_onnx(domain, op_type):
        return None  # ONNX has the operator, but not at this version
    cls = find_class(domain, op_type, max(version, 1))
    return None if cls is None else _from_class(cls, domain, op_type)


def _in_onnx(domain: str, op_type: str) -> bool:
    return bool(onnx.defs.has(op_type, domain))


def _from_onnx(schema: onnx.defs.OpSchema) -> Schema:
    constraints = {item.type_param_str for item in schema.type_constraints}
    kinds: dict[onnx.defs.OpSchema.FormalParameterOption, Kind] = {
        onnx.defs.OpSchema.FormalParameterOption.Single: "single",
        onnx.defs.OpSchema.FormalParameterOption.Optional: "optional",
        onnx.defs.OpSchema.FormalParameterOption.Variadic: "variadic",
    }

    def parameter(formal: onnx.defs.OpSchema.FormalParameter) -> Parameter:
        label = formal.type_str if formal.type_str in constraints else ""
        return Parameter(formal.name, kinds[formal.option], label, frozenset(formal.types), bool(formal.is_homogeneous))

    return Schema(
        schema.domain,
        schema.name,
        schema.since_version,
        tuple(map(parameter, schema.inputs)),
        tuple(map(parameter, schema.outputs)),
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {
            name: AttributeRule(ir.AttributeType(int(rule.type.value)), bool(rule.required))
            for name, rule in schema.attributes.items()
        },
        bool(schema.deprecated),
    )


def _from_class(cls: type[Operator], domain: str, op_type: str) -> Schema:
    inputs = _declared(getattr(cls, "inputs", None))
    outputs = _declared(getattr(cls, "outputs", None))
    return Schema(domain, op_type, cls.since, inputs, outputs, _range(inputs), _range(outputs), _attributes(cls))


def _declared(text: str | None) -> tuple[Parameter, ...] | None:
    """Parameters from their short form: names with commas between, ``?`` for optional and ``*`` for variadic ones."""
    if not isinstance(text, str):
        return None
    kinds: dict[str, Kind] = {"?": "optional", "*": "variadic"}
    names = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(Parameter(name.rstrip("?*"), kinds.get(name[-1], "single")) for name in names)


def _range(parameters: tuple[Parameter, ...] | None) -> tuple[int, int]:
    if parameters is None:
        return 0, _UNBOUNDED
    required = [index + 1 for index, item in enumerate(parameters) if item.kind == "single"]
    unbounded = any(item.kind == "variadic" for item in parameters)
    return max(required, default=0), _UNBOUNDED if unbounded else len(parameters)


def _attributes(cls: type[Operator]) -> dict[str, AttributeRule]:
    rules = {}
    for name, annotation in cls.fields.items():
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        first = text.split("|")[0].strip()
        rules[name] = AttributeRule(_ANNOTATED.get(first), not hasattr(cls, name))
    return rules


def known_names() -> dict[str, set[str]]:
    """All operators by name, each with its domains."""
    load_families()
    names: dict[str, set[str]] = {}
    for domain, op_type in registered():
        names.setdefault(op_type, set()).add(domain)
    for schema in onnx.defs.get_all_schemas():
        names.setdefault(schema.name, set()).add(schema.domain)
    return names


def suggestion(domain: str, op_type: str) -> str:
    """A hint that names the most similar operators that exist; empty where none is similar."""
    names = known_names()
    if op_type in names:
        found = [op_type]
    else:
        import difflib  # which few models need

        lower = {name.lower(): name for name in names}
        found = [lower[name] for name in difflib.get_close_matches(op_type.lower(), lower, n=2, cutoff=0.6)]
    shown = [f"{name} of domain '{home or 'ai.onnx'}'" for name in found for home in sorted(names[name])]
    return f" Did you mean {' or '.join(shown[:3])}?" if shown else ""
