"""Command line, composition roots, local stack, alembic migrations: where objects are built and processes start."""

__version__ = "0.1.0"
