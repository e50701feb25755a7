"""Loads a model from a manifest's text, with readable errors. Pure."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_json

from longboat_crds.base import API_VERSION, MANIFEST, ApiModel
from longboat_crds.objects import KINDS, ClusterRLRuntime, RLJob, RLRuntime
from longboat_crds.rules import removed
from longboat_crds.schema import Schema, json_schema
from longboat_crds.yaml_text import parse

Model = TypeVar("Model", bound=ApiModel)

_WORDS = {
    "missing": "is required: give it",
    "string_type": "must be a string; put it in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be an object of fields",
    "dict_type": "must be an object of fields",
}


class ApiError(ValueError):
    """A manifest or JSON value that is not valid. Each of `problems` says what is wrong, after the field's path if it is about a field."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load_job(text: str) -> RLJob:
    """Reads the RLJob in a YAML (or JSON) text, with defaults filled in. Raises ApiError that says what is wrong."""
    job = load(text)
    if not isinstance(job, RLJob):
        raise ApiError([f"kind: is {job.kind}; an RLJob is needed"])
    return job


def load(text: str) -> RLJob | RLRuntime | ClusterRLRuntime:
    """Reads an object of any of the three kinds from a YAML (or JSON) text. Raises ApiError that says what is wrong."""
    try:
        documents = [document for document in parse(text) if document is not None]
    except yaml.YAMLError as error:
        raise ApiError([f"not valid YAML: {error}"]) from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ApiError(["the file must hold one object with apiVersion, kind, metadata and spec"])
    value = documents[0]
    if value.get("apiVersion") != API_VERSION:
        raise ApiError([f"apiVersion: must be {API_VERSION}, not {value.get('apiVersion')}"])
    model = KINDS.get(str(value.get("kind")))
    if model is None:
        raise ApiError([f"kind: must be one of {', '.join(KINDS)}, not {value.get('kind')}"])
    return checked(model, value)


def checked(model: type[Model], value: Any) -> Model:
    """Checks a JSON value and returns its model. Raises ApiError with a line for each problem found."""
    refused = list(_refused(model, value))
    try:
        # The API server doesn't know the names that fields have in Python.
        valid = model.model_validate_json(to_json(value), strict=True, by_alias=True, by_name=False, context=MANIFEST)
    except ValidationError as error:
        schema = json_schema(model)
        problems = [_problem(detail, schema) for detail in error.errors(include_url=False)]
        raise ApiError([*refused, *problems]) from error
    if refused:
        raise ApiError(refused)
    return valid


def _refused(model: type[ApiModel], value: Any, above: str = "") -> Iterator[str]:
    """Yields a line for each removed field or value that a model's JSON value has."""
    if not isinstance(value, dict):
        return
    for name, info in model.model_fields.items():
        key = info.alias or name
        field_value, path, mark = value.get(key), f"{above}{key}", removed(info)
        if mark is not None and mark.refuses(field_value):
            yield f"{path}: {mark.message}"
            continue
        for part in _models(info.annotation):
            yield from _refused(part, field_value, f"{path}.")
            for position, item in enumerate(field_value if isinstance(field_value, list) else ()):
                yield from _refused(part, item, f"{path}[{position}].")


def _models(kind: Any) -> Iterator[type[ApiModel]]:
    """Yields the API models in a field's type."""
    if isinstance(kind, type) and issubclass(kind, ApiModel):
        yield kind
    for part in get_args(kind):
        yield from _models(part)


def _problem(detail: ErrorDetails, schema: Schema) -> str:
    """Describes an error in one line: the field's path as the API server writes it, and what is wrong or has to be there."""
    path = _path(detail["loc"])
    context = detail.get("ctx", {})
    if "field" in context:
        return f"{f'{path}.' if path else ''}{context['field']}: {context['message']}"
    kind = detail["type"]
    if kind == "extra_forbidden":
        fields = _at(schema, detail["loc"][:-1]).get("properties", {})
        names = [name for name, field in fields.items() if "deprecated" not in field]
        close = get_close_matches(str(detail["loc"][-1]), names, n=1)
        cure = f"did you mean {close[0]}?" if close else f"known fields are {', '.join(names)}"
        return f"{path}: no such field; {cure}"
    if kind in ("enum", "literal_error"):
        return f"{path}: must be {context['expected']}, not {detail['input']!r}"
    words = _WORDS.get(kind) or detail["msg"].replace("Input should", "must").replace("String should", "must")
    actual = "" if kind == "missing" else f" (it is {_short(detail['input'])})"
    return f"{path}: {words}{actual}"


def _path(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _at(schema: Schema, location: tuple[int | str, ...]) -> Schema:
    for part in location:
        schema = schema.get("items", {}) if isinstance(part, int) else schema.get("properties", {}).get(part, {})
    return schema


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
