"""The client: finds the server of a job manager and asks it by REST.

In: requests to a server.
Out: answers, and the server's problems as penstock's errors.
Imports: errors, metrics, server.
"""
