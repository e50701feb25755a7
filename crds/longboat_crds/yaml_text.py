"""YAML as Kubernetes reads and writes it. Pure."""

import re
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars: `1e-6` is a number, a date is a string, `on` and `no` are strings; a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a field's name must be a string", key.start_mark)
            if key.value in names:
                raise yaml.constructor.ConstructorError(None, None, f"field {key.value} is given twice", key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Neither anchors nor aliases, which are hard to read in a manifest."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_BOOL, _INT, _FLOAT, _NULL = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null"))
_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(_INT, re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])
_Loader.add_implicit_resolver(_NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])


def parse(text: str) -> list[Any]:
    """Reads the documents of a text. Raises yaml.YAMLError."""
    return list(yaml.load_all(text, Loader=_Loader))


def dump(value: Any) -> str:
    """Returns the YAML text of a document with keys in alphabetical order, as `kubectl get -o yaml` has them."""
    return yaml.dump(value, Dumper=_Dumper, width=120, sort_keys=True, allow_unicode=True)
