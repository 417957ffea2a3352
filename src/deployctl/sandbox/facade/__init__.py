"""The embedded engine's front: Ollama's HTTP API over llama.cpp's own ``llama-server``.

Shipped to the host as one executable zip, ``bin/ollama``; Python 3.9 or newer and nothing but the standard library.
Facts and texts of Ollama that it repeats are those of v0.33.0-rc2 (August 2026).
"""

from __future__ import annotations

# The Ollama release whose behaviour is copied, marked so that nobody takes it for a genuine one. It parses as a
# semantic version with a pre-release part.
VERSION = "0.33.0-embedded"
