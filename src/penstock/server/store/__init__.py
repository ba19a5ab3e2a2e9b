"""Store: desired and actual status of jobs, their runs, operations and audit log, in SQLite or PostgreSQL."""
