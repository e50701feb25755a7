"""The files in the tree are what the models say, and obey what Kubernetes asks of a structural schema."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from longboat_crds import generate
from longboat_crds.crd import definitions
from longboat_crds.generated import generated
from longboat_crds.job import RLJobSpec
from longboat_crds.load import load_job
from longboat_crds.objects import RLJob
from longboat_crds.schema import VALIDATIONS, json_schema
from longboat_crds.status import DRIVER_FIELDS, OPERATOR_FIELDS
from longboat_crds.yaml_text import dump
from tests.crds.manifests import MINIMAL, changed


def test_no_generated_file_is_stale() -> None:
    assert generate.stale() == []


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    for path, text in generated().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert generate.stale(tmp_path) == []
    (tmp_path / "docs/conditions.md").write_text("changed by hand\n")
    (tmp_path / "crds/rljobs.yaml").unlink()
    assert sorted(generate.stale(tmp_path)) == ["crds/rljobs.yaml", "docs/conditions.md"]


def _nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from _nodes(item, f"{path}.{name}")
    if "items" in schema:
        yield from _nodes(schema["items"], f"{path}[]")


SCHEMAS = {
    name: definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for name, definition in definitions().items()
}
NODES = [(f"{name}{path}", node) for name, schema in SCHEMAS.items() for path, node in _nodes(schema)]


def test_every_value_is_bounded() -> None:
    """Rules in CEL are refused where values have no upper bound, and no object may grow without end."""
    unbounded = [path for path, node in NODES if not _bounded(node) and not path.endswith((".apiVersion", ".kind"))]
    assert unbounded == []


def _bounded(node: dict[str, Any]) -> bool:
    match node["type"]:
        case "string":
            return "maxLength" in node or "enum" in node or node.get("format") == "date-time"
        case "array":
            return "maxItems" in node
        case "integer" | "number":
            return "minimum" in node and "maximum" in node
    return True


def test_every_list_has_a_type() -> None:
    assert [path for path, node in NODES if node["type"] == "array" and "x-kubernetes-list-type" not in node] == []


def test_nothing_is_left_that_a_structural_schema_forbids() -> None:
    forbidden = {"$ref", "$defs", "anyOf", "const", "title"}
    assert [path for path, node in NODES if forbidden & set(node)] == []
    assert [path for path, node in NODES if node.get("additionalProperties") is False] == []
    assert [path for path, node in NODES if node.get("default", "") is None] == []


def test_every_field_is_described() -> None:
    bare = [path for path, node in NODES if "description" not in node and not path.endswith("[]")]
    assert [path for path in bare if ".metadata" not in path] == []


def test_defaults_of_the_definition_are_those_of_the_models() -> None:
    """What the API server and readers fill in is what `longboat run` fills in."""
    filled = _fill(SCHEMAS["rljobs"]["properties"]["spec"], changed({})["spec"])
    read = _fill(json_schema(RLJobSpec), filled)
    assert load_job(dump(MINIMAL)).spec.to_json() == read
    assert {**read, "dataset": filled["dataset"]} != read, "readers have defaults of their own"


def _fill(schema: dict[str, Any], value: Any) -> Any:
    """Structural defaulting as the API server does it."""
    if isinstance(value, list):
        return [_fill(schema["items"], item) for item in value]
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, item in schema.get("properties", {}).items():
        if name not in result and "default" in item:
            result[name] = item["default"]
        if name in result:
            result[name] = _fill(item, result[name])
    return result


def test_a_status_has_no_defaults() -> None:
    assert not [path for path, node in _nodes(SCHEMAS["rljobs"]["properties"]["status"]) if "default" in node]


def test_the_two_writers_of_status_share_it_completely() -> None:
    fields = set(SCHEMAS["rljobs"]["properties"]["status"]["properties"])
    assert fields == DRIVER_FIELDS | OPERATOR_FIELDS
    assert not DRIVER_FIELDS & OPERATOR_FIELDS


def test_what_columns_and_subresources_point_to_exists() -> None:
    version = definitions()["rljobs"]["spec"]["versions"][0]
    paths = {path for path, _ in _nodes(version["schema"]["openAPIV3Schema"])}
    scale = version["subresources"]["scale"]
    pointed = [
        *(column["jsonPath"] for column in version["additionalPrinterColumns"] if column["type"] != "date"),
        *(field["jsonPath"] for field in version["selectableFields"]),
        *scale.values(),
    ]
    assert [path for path in pointed if path not in paths] == []


def test_rules_name_fields_that_exist() -> None:
    for schema in SCHEMAS.values():
        for path, node in _nodes(schema):
            fields = {inner for inner, _ in _nodes(node)}
            for rule in node.get(VALIDATIONS, ()):
                assert rule.get("fieldPath", "") in fields, f"{path}: {rule['message']}"


def test_editors_accept_a_job_and_refuse_a_typo() -> None:
    schema = yaml.safe_load((generate.ROOT / "docs/reference/rljob.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(MINIMAL)
    assert not validator.is_valid(changed({"spec.rolout": {}}))
    assert not validator.is_valid(changed({"spec.rounds.steps": "4"}))


def test_the_reference_page_tells_of_every_field() -> None:
    page = (generate.ROOT / "docs/reference/rljob.md").read_text()
    names = {path.rpartition(".")[2].removesuffix("[]") for path, _ in _nodes(json_schema(RLJob)["properties"]["spec"])}
    assert [name for name in names if name and f"`{name}`" not in page] == []
