"""REST: the HTTP API of the job manager for programs and the dashboard, and its access control."""
