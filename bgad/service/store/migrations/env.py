"""Runs the migrations on the connection that the store passes to Alembic; there is no configuration file."""

from alembic import context

from bgad.service.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
