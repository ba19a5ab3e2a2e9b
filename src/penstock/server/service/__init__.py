"""Service: the interface of the server for REST, the dashboard and the command line."""
