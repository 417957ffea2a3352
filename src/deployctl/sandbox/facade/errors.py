"""The one error of the façade: what the client is told, and under which status."""

from __future__ import annotations


class ApiError(Exception):
    """A refusal that goes to the client as ``{"error": message}`` under an HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def not_found(name: str) -> ApiError:
    """Ollama's words for a model that is not there."""
    return ApiError(404, f"model '{name}' not found")
