"""Asks an Ollama on the loopback how it is, with the standard library alone."""

from __future__ import annotations

import json
import urllib.error
import urllib.request


class NoAnswer(Exception):
    """Nothing usable came back."""


def get(url, timeout=5):
    """GET a JSON document from the loopback; no proxy stands in between. Raises NoAnswer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return json.loads(answer.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        raise NoAnswer(str(getattr(error, "reason", error)))


def version(url):
    """Return the version that the server at ``url`` tells, or None."""
    try:
        return get(url + "/api/version").get("version")
    except NoAnswer:
        return None
