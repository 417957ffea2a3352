"""The embedded engine's front: Ollama's HTTP API over llama.cpp's own ``llama-server``.

Shipped to the host as one executable zip, ``bin/ollama``; Python 3.9 or newer and nothing but the standard library.
Facts and texts of Ollama that it repeats are those of v0.33.0-rc2 (August 2026).

What differs from a genuine server, on purpose:

- The version ends in ``-embedded``. The makers' registry is never asked: ``/api/pull`` fetches names that name another
  (``host:port/namespace/model:tag``, over one connection, resumed by Range) and else knows only what is installed.
- No GPU, no embeddings, tools, images, thinking, log probabilities, ``/v1`` endpoints, nor the deprecated ``context``
  of ``/api/generate``; a request for what is missing is refused.
- A GGUF file without a chat template (a base model) is asked with questions and answers in ``/api/chat``, and with the
  bare prompt in ``/api/generate``.
- No context shift: a generation that fills its context ends with ``length``; a prompt larger than the context is
  refused with 400 instead of being cut.
- Ollama gives up on thirty equal tokens in a row without a final line; this one goes on.
"""

from __future__ import annotations

# The Ollama release whose behaviour is copied, marked so that nobody takes it for a genuine one. It parses as a
# semantic version with a pre-release part.
VERSION = "0.33.0-embedded"
