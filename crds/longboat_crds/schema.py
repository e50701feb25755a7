"""JSON schemas of the models without references, and their structural form for a CustomResourceDefinition. Pure."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from longboat_crds.base import PRESERVE_UNKNOWN, READER_DEFAULT, ApiModel
from longboat_crds.rules import removed

Schema = dict[str, Any]

VALIDATIONS = "x-kubernetes-validations"


def json_schema(model: type[ApiModel]) -> Schema:
    """Returns the schema (JSON Schema 2020-12) with all references inlined, defaults filled in and optional nulls left out.

    Rules between fields become x-kubernetes-validations of their model's schema.
    """
    generated = model.model_json_schema(by_alias=True)
    definitions = generated.pop("$defs", {})
    return _inline(generated, definitions, _models(model), model)


def structural(schema: Schema) -> Schema:
    """Returns the same schema by the rules of structural OpenAPI v3 schemas, which prune unknown keys implicitly.

    The defaults that readers fill in are left out.
    """
    dropped = {"additionalProperties", "const", "deprecated", READER_DEFAULT}
    dropped |= {"default"} if schema.get(READER_DEFAULT) else set()
    result = {k: v for k, v in schema.items() if k not in dropped}
    if isinstance(result.get("default"), dict):
        fields = schema.get("properties", {})
        result["default"] = {k: v for k, v in result["default"].items() if READER_DEFAULT not in fields.get(k, {})}
    if isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = structural(schema["additionalProperties"])
    if schema.get("type") == "integer":
        result["format"] = "int32" if schema.get("maximum", 2**63) < 2**31 else "int64"
    for bound in ("minimum", "maximum"):
        exclusive = "exclusive" + bound.capitalize()
        if exclusive in result:
            result[bound], result[exclusive] = result[exclusive], True
    if "properties" in result:
        result["properties"] = {name: structural(item) for name, item in result["properties"].items()}
    if "items" in result:
        result["items"] = structural(result["items"])
    return result


def without(schema: Schema, unwanted: str) -> Schema:
    """Returns the schema and all schemas in it without keys that begin with `unwanted`."""
    result = {key: value for key, value in schema.items() if not key.startswith(unwanted)}
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), dict):
            result[key] = without(result[key], unwanted)
    if "properties" in result:
        result["properties"] = {name: without(item, unwanted) for name, item in result["properties"].items()}
    return result


def paragraph(text: str) -> str:
    """Returns a docstring without its line breaks; paragraphs are kept."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _models(model: type[BaseModel]) -> dict[str, type[BaseModel] | type[StrEnum]]:
    """Returns the model and all models and enumerations in it, by the names that pydantic gives to definitions."""
    models: dict[str, type[BaseModel] | type[StrEnum]] = {model.__name__: model}
    for info in model.model_fields.values():
        for part in _classes(info.annotation):
            if issubclass(part, BaseModel):
                models |= _models(part)
            elif issubclass(part, StrEnum):
                models[part.__name__] = part
    return models


def _classes(annotation: Any) -> list[type]:
    arguments = getattr(annotation, "__args__", None)
    if arguments:
        return [part for argument in arguments for part in _classes(argument)]
    return [annotation] if isinstance(annotation, type) else []


def _inline(node: Schema, definitions: dict[str, Schema], models: dict[str, Any], model: Any = None) -> Schema:
    """Returns `node`, the schema of `model`, with references replaced by what they point to; keys beside a reference win.

    A description beside a reference to an enumeration follows the enumeration's own.
    """
    node = dict(node)
    if "anyOf" in node:
        [schema] = [choice for choice in node.pop("anyOf") if choice != {"type": "null"}]
        if node.get("default", ...) is None:
            del node["default"]
        node = {**schema, **node}
    name = node.pop("$ref", "").rpartition("/")[2]
    if name:
        target = definitions[name]
        if "enum" in target and "description" in node:
            node["description"] = f"{target['description']} {node['description']}"
        node = {**target, **node}
        model = models[name]
    node.pop("title", None)
    if "description" in node:
        node["description"] = paragraph(node["description"])
    if "items" in node:
        node["items"] = _inline(node["items"], definitions, models)
    if node.get("additionalProperties") is True or PRESERVE_UNKNOWN in node:
        node.pop("additionalProperties", None)
        node[PRESERVE_UNKNOWN] = True
    if isinstance(model, type) and issubclass(model, BaseModel) and "properties" in node:
        node["properties"] = _properties(node["properties"], model, definitions, models)
        rules = getattr(model, "rules", ())
        if rules:
            node[VALIDATIONS] = [rule.to_cel() for rule in rules]
    return node


def _properties(
    properties: dict[str, Schema], model: type[BaseModel], definitions: dict[str, Schema], models: dict[str, Any]
) -> dict[str, Schema]:
    result = {}
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    for key, node in properties.items():
        result[key] = _inline(node, definitions, models)
        if mark := removed(fields[key]):
            if mark.values:
                description = paragraph(f"{result[key].get('description', '')} {mark.message}.")
                result[key] |= {"enum": [*result[key]["enum"], *mark.values], "description": description}
            else:
                # Unknown fields aren't preserved: the API server would think that any write changes such an object, and refuse it.
                body = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
                body = body if result[key]["type"] == "object" else result[key]
                result[key] = {**body, "description": f"Removed: {mark.cure}.", "deprecated": True}
            result[key][VALIDATIONS] = [mark.to_cel()]
        if fields[key].default_factory is not None:
            default = fields[key].get_default(call_default_factory=True)
            if isinstance(default, ApiModel):
                # An empty object is filled by the defaults within it, but rules judge a default as written.
                default = default.to_json() if default.rules else {}
            elif isinstance(default, list):
                default = [item.to_json() if isinstance(item, ApiModel) else item for item in default]
            result[key]["default"] = default
    return result
