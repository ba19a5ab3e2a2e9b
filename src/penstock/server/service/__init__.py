"""Service: what REST, the dashboard and the command line may ask of the server."""
