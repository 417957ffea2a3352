"""Ollama's HTTP API and its journal."""
