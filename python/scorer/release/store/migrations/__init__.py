"""How a database comes to the tables of today: alembic's scripts, shipped with the package."""
