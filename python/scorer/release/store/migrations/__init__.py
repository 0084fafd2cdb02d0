"""Alembic's migration scripts, which upgrade a database to the present tables."""
