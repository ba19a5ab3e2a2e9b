"""The client: finds the server of a job manager, asks it by REST, and tells its errors as penstock's."""
