"""Run by Alembic: migrates the store over the connection, and in the transaction, that it is given."""

from alembic import context

from penstock.server.store.database import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
