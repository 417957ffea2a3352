"""The record's schema in words: the tables of docs/record.md, made from the models so that they cannot drift."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, JsonValue

from deployctl.records.schema import SCHEMA_VERSION, Record, schema_json

BEGIN = "<!-- begin: made by python -m deployctl.records.document -->"
END = "<!-- end -->"


def tables() -> str:
    """Return one Markdown section per block of the record, depth first in the order of the fields."""
    return "\n".join(_section(path, model) for path, model in _blocks(Record, "", seen=set()))


def fill(document: str) -> str:
    """Return ``document`` with what lies between its two markers replaced by the tables. Raises ValueError without."""
    head, _, rest = document.partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise ValueError(f"the document lacks {BEGIN!r} or {END!r}")
    return f"{head}{BEGIN}\n\n{tables()}\n{END}{tail}"


def _blocks(model: type[BaseModel], path: str, seen: set[type[BaseModel]]) -> Iterator[tuple[str, type[BaseModel]]]:
    if model in seen:  # described once, where it first occurs
        return
    seen.add(model)
    yield path, model
    for name, field in model.model_fields.items():
        many = "[]" if _origin(field.annotation) is tuple else "{}" if _origin(field.annotation) is dict else ""
        for inner in _models(field.annotation):
            yield from _blocks(inner, f"{path}.{name}{many}".lstrip("."), seen)


def _section(path: str, model: type[BaseModel]) -> str:
    rows = [
        f"| `{name}` | {_kind(field.annotation)}{'' if field.is_required() else ', optional'} | {field.description} |"
        for name, field in model.model_fields.items()
    ] + [
        f"| `{name}` | {_kind(field.return_type)} | {field.description} |"
        for name, field in model.model_computed_fields.items()
    ]
    purpose = " ".join((model.__doc__ or "").split())
    title = f"### `{path}`" if path else "### The record"
    return "\n".join([title, "", purpose, "", "| key | kind | meaning |", "|---|---|---|", *rows, ""])


def _origin(annotation: Any) -> Any:
    for option in _options(annotation):
        if get_origin(option) in (tuple, dict):
            return get_origin(option)
    return None


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _options(annotation: Any) -> list[Any]:
    annotation = _bare(annotation)
    union = get_origin(annotation) in (typing.Union, types.UnionType)
    return [_bare(option) for option in get_args(annotation)] if union else [annotation]


def _bare(annotation: Any) -> Any:
    while get_origin(annotation) is typing.Annotated:
        annotation = get_args(annotation)[0]
    return annotation


def _kind(annotation: Any) -> str:
    """An annotation as people say it: ``number or null``, ``list of objects``, ``text``."""
    return " or ".join(_one(option) for option in _options(annotation))


def _one(option: Any) -> str:
    origin, arguments = get_origin(option), get_args(option)
    if origin is tuple:
        return f"list of {_plural(_one(_bare(arguments[0])))}"
    if origin is dict:
        value = _bare(arguments[1])
        return "object" if value is JsonValue else f"object of {_plural(_one(value))}"
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if isinstance(option, type) and issubclass(option, BaseModel):
        return "object"
    names = {"int": "integer", "float": "number", "str": "text", "bool": "true or false", "AwareDatetime": "time"}
    return "null" if option is types.NoneType else names[option.__name__]


def _plural(kind: str) -> str:
    return kind if kind == "text" else f"{kind}s"


if __name__ == "__main__":
    import sys
    from pathlib import Path

    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    target = folder / "record.md"
    target.write_text(fill(target.read_text("utf-8")), "utf-8")
    (folder / f"record-v{SCHEMA_VERSION}.schema.json").write_text(schema_json(), "utf-8")
