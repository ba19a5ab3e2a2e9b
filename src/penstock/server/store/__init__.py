"""Store: what users want of jobs, what the manager has decided and seen, and who did what. SQLite or PostgreSQL."""
