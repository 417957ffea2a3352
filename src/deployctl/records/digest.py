"""The seal of a record: the SHA-256 of what it says, however it is laid out. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY = "digest"


def content_digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a JSON object, ``digest`` itself left out: SHA-256 in hex.

    It is taken over the object written as UTF-8 without white space, keys sorted by code point at every depth, text
    unescaped where JSON allows it, and numbers in Python's shortest form that reads back the same. Line breaks, indents
    and the order of keys do not count; every value does.
    """
    kept = {name: value for name, value in document.items() if name != KEY}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
