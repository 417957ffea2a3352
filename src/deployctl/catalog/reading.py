"""Reads one inventory file into typed entries; whatever is wrong is named with its file, line and nearest key."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from deployctl.catalog.base import Entry
from deployctl.errors import CatalogError

E = TypeVar("E", bound=Entry)
Loc = tuple[int | str, ...]

MAX_BYTES = 4 * 1024**2  # an inventory file is written by hand


def read_entries(path: Path, model: type[E], word: str, key: str) -> dict[str, E]:
    """Read ``path``, a mapping from names to entries, as ``model``; the name becomes the entry's field ``key``.

    ``word`` is what an entry is called in messages ("plan"). Raises CatalogError.
    """
    data = _load(path)
    entries: dict[str, E] = {}
    problems: list[str] = []
    for name, body in data.items():
        if not isinstance(name, str):
            problems.append(f"{_where(path, (name,))}: the name of a {word} must be a string, not {name!r}")
        elif not isinstance(body, Mapping):
            problems.append(f"{_where(path, (name,))}: {word} {name} must be a mapping of keys to values")
        elif key in body:
            problems.append(f"{_where(path, (name, key))}: unknown key '{key}' in {word} {name}: the name is above it")
        else:
            try:
                entries[name] = model.model_validate({**body, key: name})
            except ValidationError as error:
                problems += [
                    f"{_where(path, (name, *_existing(body, detail['loc'])))}: {_explain(detail, model, word, name)}"
                    for detail in _told_apart(error.errors(include_url=False), model)
                ]
    if problems:
        raise CatalogError("\n".join(problems), hint=f"edit {shown(path)}")
    return entries


def line_of(path: Path, loc: Loc) -> int | None:
    """Return the line (from 1) of the deepest part of ``loc`` that the file has; None when it cannot be told.

    The file is read again with positions: only errors pay for that.
    """
    try:
        node: Any = YAML(typ="rt").load(path.read_text(encoding="utf-8"))
        line: int | None = None
        for part in loc:
            if isinstance(node, Mapping) and part in node:
                line = node.lc.key(part)[0] + 1  # type: ignore[attr-defined]
            elif isinstance(node, list) and isinstance(part, int) and part < len(node):
                line = node.lc.item(part)[0] + 1  # type: ignore[attr-defined]
            else:
                break
            node = node[part]
    except (OSError, UnicodeDecodeError, YAMLError, AttributeError, KeyError, TypeError):
        return None
    return line


def nearest(word: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> list[str]:
    """Return up to ``count`` names of ``known`` that resemble ``word``, nearest first (difflib's ratio: cutoff)."""
    folded = {name.lower(): name for name in known}
    return [folded[match] for match in difflib.get_close_matches(word.lower(), folded, n=count, cutoff=cutoff)]


def shown(path: Path) -> str:
    """Return the path as the user would type it: relative where it lies below the working directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _load(path: Path) -> Mapping[Any, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CatalogError(f"{shown(path)}: larger than {MAX_BYTES} bytes; not an inventory file")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CatalogError(f"{shown(path)}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise CatalogError(f"{shown(path)}: cannot be read: {error.strerror or error}") from error
    try:
        data = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = shown(path) + (f":{mark.line + 1}" if mark is not None else "")
        problem = " ".join(str(error.problem or error.context or "not YAML").split())
        raise CatalogError(f"{where}: {problem}", hint=f"edit {shown(path)}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise CatalogError(f"{shown(path)}: not YAML: {error}", hint=f"edit {shown(path)}") from error
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise CatalogError(f"{shown(path)}:1: the file must be a mapping from names to entries")
    return data


def _where(path: Path, loc: Loc) -> str:
    line = line_of(path, loc)
    return shown(path) if line is None else f"{shown(path)}:{line}"


def _existing(body: Any, loc: Loc) -> Loc:
    """Drop the parts of a pydantic location that name no key of the file (tags of unions and validators)."""
    kept: list[int | str] = []
    for part in loc:
        in_mapping = isinstance(body, Mapping) and part in body
        in_list = isinstance(body, list | tuple) and isinstance(part, int) and part < len(body)
        if in_mapping or in_list:
            body = body[part]
            kept.append(part)
    return tuple(kept)


def _told_apart(details: list[ErrorDetails], model: type[BaseModel]) -> list[ErrorDetails]:
    """Drop "missing key" where an unknown key beside it is that key misspelt."""
    misspelt = {
        (*detail["loc"][:-1], *nearest(str(detail["loc"][-1]), _keys_at(model, detail["loc"][:-1]), 1))
        for detail in details
        if detail["type"] == "extra_forbidden"
    }
    return [detail for detail in details if detail["type"] != "missing" or detail["loc"] not in misspelt]


def _explain(detail: ErrorDetails, model: type[BaseModel], word: str, name: str) -> str:
    loc = detail["loc"]
    inside = f"{word} {name}" + "".join(f", {part}" for part in loc[:-1])
    if detail["type"] == "extra_forbidden":
        unknown = str(loc[-1])
        near = nearest(unknown, _keys_at(model, loc[:-1]), 1)
        return f"unknown key '{unknown}' in {inside}" + (f"; did you mean '{near[0]}'?" if near else "")
    if detail["type"] == "missing":
        return f"missing key '{loc[-1]}' in {inside}"
    said = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if detail["type"] == "value_error":
        return f"{word} {name}" + "".join(f", {part}" for part in loc) + f": {said}"
    return f"'{loc[-1]}' in {inside} {said}, not {_short(detail['input'])}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _keys_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Return the keys that the schema knows at ``loc`` below ``model``."""
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            found = current.model_fields.get(str(part))
            current = None if found is None else found.annotation
        else:
            current = next((arg for arg in reversed(get_args(current)) if arg is not Ellipsis), None)
        current = _without_none(current)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in {Union, types.UnionType}:
        options = [arg for arg in get_args(annotation) if arg is not type(None)]
        return next((arg for arg in options if isinstance(arg, type) and issubclass(arg, BaseModel)), options[0])
    return annotation
