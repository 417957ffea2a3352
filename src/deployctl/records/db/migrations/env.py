"""Alembic's entry: runs the migrations on the connection that it is handed, inside the caller's transaction."""

from alembic import context

from deployctl.records.db.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
