"""Service: what REST, the dashboard and the command line use of the server."""
