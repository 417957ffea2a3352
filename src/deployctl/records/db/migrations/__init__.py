"""Alembic environment of the index."""
