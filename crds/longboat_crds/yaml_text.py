"""Reads and writes manifests in YAML. Pure."""

import json
import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Takes `1e-6` for a number, and dates, `on` and `no` for strings; a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a field's name must be a string", key.start_mark)
            if key.value in names:
                raise yaml.constructor.ConstructorError(None, None, f"field {key.value} is given twice", key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (LookupError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"can't be read as {kind}", node.start_mark) from error


class _Dumper(yaml.SafeDumper):
    """Neither anchors nor aliases, which are hard to read in a manifest."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_TAG = "tag:yaml.org,2002:"
_BOOL, _INT, _FLOAT, _NULL = (f"{_TAG}{name}" for name in ("bool", "int", "float", "null"))
# JSON has no others.
_TYPES = {_BOOL, _INT, _FLOAT, _NULL, f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map", None}
_Loader.yaml_constructors = {tag: made for tag, made in yaml.SafeLoader.yaml_constructors.items() if tag in _TYPES}
_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(_INT, re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"^<<$"), ["<"])
_Loader.add_implicit_resolver(_NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])


def parse(text: str) -> list[Any]:
    """Reads the documents of a text. Raises yaml.YAMLError."""
    return list(yaml.load_all(text, Loader=_Loader))


def dump(value: Any) -> str:
    """Returns the YAML text of a document with keys in alphabetical order, as `kubectl get -o yaml` has them."""
    return yaml.dump(value, Dumper=_Dumper, width=120, sort_keys=True, allow_unicode=True)


def json_in_yaml(value: Any) -> bytes:
    """Writes JSON that a YAML parser reads too, such as the API server's for server-side apply.

    YAML knows no surrogates, with which JSON escapes what lies beyond U+FFFF, and takes most control characters only escaped. Lone
    surrogates become U+FFFD, as in Go.
    """
    return _ESCAPED_IN_YAML.sub(_escaped, json.dumps(value, ensure_ascii=False)).encode()


_ESCAPED_IN_YAML = re.compile(r"[^ -~\U00010000-\U0010ffff]")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{0xFFFD if 0xD800 <= code <= 0xDFFF else code:04x}"
