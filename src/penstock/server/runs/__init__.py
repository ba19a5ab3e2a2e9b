"""Runs: the processes of managed jobs, their folders and leases."""
