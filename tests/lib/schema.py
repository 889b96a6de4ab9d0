"""JSON documents against the schemas of an OpenAPI document: as much of JSON Schema as that uses.
A keyword that is not known here is an error, not a check that is left out."""

import re
from datetime import datetime

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
SAYS_NOTHING = {"description", "title", "default", "explode"}


def _is(value, name):
    if name in ("integer", "number"):
        kinds = int if name == "integer" else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


class Schemas:
    def __init__(self, document):
        self.document = document

    def resolve(self, node):
        while "$ref" in node:
            assert node["$ref"].startswith("#/") and len(node) == 1, node
            found = self.document
            for part in node["$ref"][2:].split("/"):
                found = found[part]
            node = found
        return node

    def check(self, value, schema, where="$"):
        """Raises AssertionError that names the place."""
        schema = self.resolve(schema)
        for keyword, rule in schema.items():
            if keyword not in SAYS_NOTHING:
                getattr(self, "_" + keyword.replace("$", ""))(value, rule, schema, where)

    def accepts(self, value, schema):
        try:
            self.check(value, schema)
        except AssertionError:
            return False
        return True

    def _type(self, value, rule, _, where):
        names = rule if isinstance(rule, list) else [rule]
        assert any(_is(value, name) for name in names), f"{where}: {value!r} is no {names}"

    def _const(self, value, rule, _, where):
        assert value == rule, f"{where}: {value!r} is not {rule!r}"

    def _enum(self, value, rule, _, where):
        assert value in rule, f"{where}: {value!r} is none of {rule}"

    def _oneOf(self, value, rule, _, where):
        assert sum(self.accepts(value, one) for one in rule) == 1, f"{where}: {value!r} fits not one of {rule}"

    def _required(self, value, rule, _, where):
        assert not isinstance(value, dict) or not set(rule) - set(value), f"{where}: {set(rule) - set(value)} missing"

    def _properties(self, value, rule, schema, where):
        for name, one in (value.items() if isinstance(value, dict) else ()):
            if name in rule:
                self.check(one, rule[name], f"{where}.{name}")

    def _additionalProperties(self, value, rule, schema, where):
        for name, one in (value.items() if isinstance(value, dict) else ()):
            if name not in schema.get("properties", {}):
                assert rule is not False, f"{where}.{name} is not in the schema"
                if rule is not True:
                    self.check(one, rule, f"{where}.{name}")

    def _items(self, value, rule, _, where):
        for i, one in enumerate(value if isinstance(value, list) else ()):
            self.check(one, rule, f"{where}[{i}]")

    def _minProperties(self, value, rule, _, where):
        assert not isinstance(value, dict) or len(value) >= rule, where

    def _maxItems(self, value, rule, _, where):
        assert not isinstance(value, list) or len(value) <= rule, where

    def _minLength(self, value, rule, _, where):
        assert not isinstance(value, str) or len(value) >= rule, where

    def _maxLength(self, value, rule, _, where):
        assert not isinstance(value, str) or len(value) <= rule, where

    def _minimum(self, value, rule, _, where):
        assert not _is(value, "number") or value >= rule, where

    def _maximum(self, value, rule, _, where):
        assert not _is(value, "number") or value <= rule, where

    def _exclusiveMinimum(self, value, rule, _, where):
        assert not _is(value, "number") or value > rule, where

    def _pattern(self, value, rule, _, where):
        assert not isinstance(value, str) or re.search(rule, value), f"{where}: {value!r} is not {rule}"

    def _format(self, value, rule, _, where):
        assert rule in ("date-time", "binary", "int64", "byte"), rule
        if rule == "date-time" and isinstance(value, str):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", value), f"{where}: {value!r}"
            datetime.fromisoformat(value.replace("Z", "+00:00"))
