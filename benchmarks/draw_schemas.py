#!/usr/bin/env python3
"""Draw instances of real JSON schemas, for `eyas bench decode --schemas`.

Reads a directory of JSON schemas, for instance the ones that the package check-jsonschema ships
(`check_jsonschema/builtin_schemas/vendor`), and writes cases: each object definition of a file
becomes a schema of its own with the definitions that it refers to, and instances are drawn for it.
Strings are words, so that texts resemble what a model would write. An instance counts only if
jsonschema finds it valid. The same files give the same cases.

    python benchmarks/draw_schemas.py SCHEMA_DIRECTORY OUTPUT_DIRECTORY
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

INSTANCES = 3
"""The number of instances of a schema."""
DEFINITIONS = 6
"""The most definitions of a file that become schemas, so that no file dominates."""
LEAST_CHARACTERS, MOST_CHARACTERS = 250, 2000
_TRIES = 60
_DEPTH = 5
_WORDS = (
    "build test deploy release main nightly linux cache upload report python node image service "
    "worker queue backup staging production the job runs when a branch changes retry on failure "
    "notify team channel with summary of results and keeps artifacts for seven days"
).split()


class NoInstance(Exception):
    """A schema of which this drawing finds no instance."""


class Drawing:
    """Draws instances of one schema. document: what `$ref` refers to."""

    def __init__(self, document: dict[str, Any], rng: random.Random) -> None:
        self._document, self._rng = document, rng

    def draw(self, schema: Any, depth: int = 0) -> Any:
        """Return an instance, which may be invalid where keywords interact. NoInstance: none."""
        rng = self._rng
        if schema is True or schema == {}:
            return self._text()
        if not isinstance(schema, dict) or depth > 2 * _DEPTH:
            raise NoInstance
        if "$ref" in schema:
            return self.draw(_at(self._document, schema["$ref"]), depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        for name in ("oneOf", "anyOf"):
            if name in schema:
                rest = {key: value for key, value in schema.items() if key != name}
                return self.draw(_merged(rest, rng.choice(schema[name]), self._document), depth + 1)
        if "allOf" in schema:
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            for part in schema["allOf"]:
                rest = _merged(rest, part, self._document)
            return self.draw(rest, depth + 1)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        match rng.choice(kind) if isinstance(kind, list) else kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "integer":
                return rng.randint(int(schema.get("minimum", 1)), int(schema.get("maximum", 500)))
            case "number":
                least, most = schema.get("minimum", 0), schema.get("maximum", 100)
                return round(rng.uniform(least, most), 2)
            case "boolean":
                return rng.random() < 0.5
            case "null":
                return None
            case _:
                return self._text()

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        likely = 0.7 if depth < _DEPTH else 0.0
        drawn: dict[str, Any] = {}
        for name, value in properties.items():
            if name not in required and self._rng.random() > likely:
                continue
            try:
                drawn[name] = self.draw(value, depth + 1)
            except NoInstance:
                if name in required:
                    raise
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict) and not properties:
            for word in self._rng.sample(_WORDS, 3):
                drawn[word] = self.draw(extra, depth + 1)
        return drawn

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        items = schema.get("items", {})
        if not isinstance(items, dict):
            raise NoInstance
        least = schema.get("minItems", 0)
        length = max(least, self._rng.randint(1, 3) if depth < _DEPTH else 0)
        return [self.draw(items, depth + 1) for _ in range(length)]

    def _text(self) -> str:
        return " ".join(self._rng.sample(_WORDS, self._rng.choice((1, 1, 2, 4, 8, 12))))


def cases_of(document: dict[str, Any], rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield cases of a file's object definitions: a schema, and tests that are its instances."""
    places = [(key, name) for key in ("definitions", "$defs") for name in document.get(key, {})]
    rng.shuffle(places)
    num_left = DEFINITIONS
    for key, name in places:
        if num_left == 0:
            return
        definition = document[key][name]
        if not isinstance(definition, dict) or "properties" not in definition:
            continue
        schema = {"$schema": document.get("$schema"), **_with_definitions(definition, document)}
        schema = {key: value for key, value in schema.items() if value is not None}
        if values := list(_instances(schema, rng)):
            num_left -= 1
            yield {"schema": schema, "tests": [{"valid": True, "data": value} for value in values]}


def _instances(schema: dict[str, Any], rng: random.Random) -> Iterator[Any]:
    validator = jsonschema.validators.validator_for(schema)(schema)
    drawing = Drawing(schema, rng)
    num = 0
    for _ in range(_TRIES):
        try:
            value = drawing.draw(schema)
            size = len(json.dumps(value))
            is_usable = LEAST_CHARACTERS <= size <= MOST_CHARACTERS and validator.is_valid(value)
        except (NoInstance, ValueError, IndexError, KeyError, TypeError, RecursionError):
            continue
        except (re.error, jsonschema.exceptions.SchemaError):
            return  # a file that is no valid schema
        if is_usable:
            yield value
            num += 1
            if num == INSTANCES:
                return


def _with_definitions(definition: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Return a definition with all that it refers to, at the same places."""
    schema = {
        key: value for key, value in definition.items() if key not in ("definitions", "$defs")
    }
    left, seen = list(_references(schema)), set()
    while left:
        reference = left.pop()
        if reference in seen:
            continue
        seen.add(reference)
        match reference.removeprefix("#/").split("/"):
            case ["definitions" | "$defs" as key, name, *_] if name in document.get(key, {}):
                schema.setdefault(key, {})[name] = document[key][name]
                left.extend(_references(document[key][name]))
    return schema


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield reference
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)


def _at(document: Any, reference: str) -> Any:
    if not reference.startswith("#/"):
        raise NoInstance
    for name in reference.removeprefix("#/").split("/"):
        if not isinstance(document, dict) or name not in document:
            raise NoInstance
        document = document[name]
    return document


def _merged(rest: dict[str, Any], part: Any, document: dict[str, Any]) -> dict[str, Any]:
    if part is True:
        return rest
    if not isinstance(part, dict):
        raise NoInstance
    if "$ref" in part:
        part = _at(document, part["$ref"])
    merged = {**rest, **part}
    merged["properties"] = {**rest.get("properties", {}), **part.get("properties", {})}
    merged["required"] = [*rest.get("required", []), *part.get("required", [])]
    return {key: value for key, value in merged.items() if value not in ({}, [])}


def main(arguments: list[str]) -> int:
    """Write the cases of all files of a directory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schemas", type=Path, metavar="SCHEMA_DIRECTORY")
    parser.add_argument("output", type=Path, metavar="OUTPUT_DIRECTORY")
    chosen = parser.parse_args(arguments)
    files = sorted(chosen.schemas.glob("*.json"))
    if not files:
        parser.error(f"{chosen.schemas} holds no .json files")
    chosen.output.mkdir(parents=True, exist_ok=True)
    num_cases = num_files = 0
    for file in files:
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            parser.error(f"{file} is no JSON ({error})")
        rng = random.Random(file.name)
        cases = list(cases_of(document, rng)) if isinstance(document, dict) else []
        for number, case in enumerate(cases):
            text = json.dumps(case, ensure_ascii=False)
            (chosen.output / f"{file.stem}-{number}.json").write_text(text, encoding="utf-8")
        num_cases, num_files = num_cases + len(cases), num_files + bool(cases)
    print(f"{num_cases} schemas of {num_files} files in {chosen.output}")
    return 0 if num_cases else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
