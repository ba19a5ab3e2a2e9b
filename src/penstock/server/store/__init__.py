"""Store: desired and actual status of jobs, runs, operations and audit log, in a database or an object store."""
