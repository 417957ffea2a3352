"""Renderings of records: HTML, Markdown, the terminal."""
