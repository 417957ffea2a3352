"""What a server of OpenAI's API tells before it is measured: that it is there, and that it has the model."""

from __future__ import annotations

from deployctl.catalog.reading import nearest
from deployctl.errors import HostUnreachable, ModelUnavailable


def find_model(url: str, model: str) -> None:
    """Raise HostUnreachable where nothing speaks OpenAI's API, ModelUnavailable where it has no such model."""
    import httpx

    try:
        answer = httpx.get(f"{url}/v1/models", timeout=30.0)
        answer.raise_for_status()
        there = [str(entry["id"]) for entry in answer.json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise HostUnreachable(
            f"nothing answers as OpenAI's API does at {url}: {error}", hint=f"curl {url}/v1/models"
        ) from error
    if model not in there:
        near = nearest(model, there) or there[:5]
        raise ModelUnavailable(
            f"the server at {url} has no model {model!r}" + (f"; it has {', '.join(near)}" if near else ""),
            hint=f"curl {url}/v1/models",
        )
