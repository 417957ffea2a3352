"""The kinds of value that a record may hold: everything must survive JSON, so nothing is infinite or not a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue


class Part(BaseModel):
    """A block of the record: frozen, unknown keys refused, no infinite or undefined number."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


def _infinite_to_null(value: object) -> object:
    return None if isinstance(value, float) and value == math.inf else value


def _undefined_to_null(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


def _clip_share(value: object) -> object:
    # A bound from a normal approximation may leave [0, 1]; a share cannot. NaN falls through and is refused.
    if isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value):
        return min(1.0, max(0.0, float(value)))
    return value


def jsonable(value: object) -> JsonValue:
    """Turn nested plain data into what JSON holds: tuples and sets become lists, infinite and undefined numbers null.

    Raises TypeError for anything that is not plain data (so that a secret-bearing object is never stringified).
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        # An undecodable byte of a remote file becomes a lone surrogate, which no UTF-8 file can hold.
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return [jsonable(entry) for entry in sorted(value)]
    if hasattr(value, "item") and hasattr(value, "dtype"):  # a numpy scalar, without importing numpy here
        return jsonable(value.item())
    raise TypeError(f"not plain data: {type(value).__name__}")


def _free(value: Any) -> Any:
    try:
        return jsonable(value)
    except TypeError as error:
        raise ValueError(str(error)) from None


Moment = Annotated[AwareDatetime, AfterValidator(lambda moment: moment.astimezone(UTC))]
Finite = Annotated[float | None, BeforeValidator(_infinite_to_null)]
Seconds = Annotated[float, Field(ge=0)]
Latency = Annotated[Seconds | None, BeforeValidator(_infinite_to_null)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareOfNothing = Annotated[Share | None, BeforeValidator(_undefined_to_null)]  # 0 of 0 is NaN where it is computed
Bound = Annotated[Share, BeforeValidator(_clip_share)]
Free = Annotated[dict[str, JsonValue], BeforeValidator(_free)]
