"""Manager: polls jobs and their drivers, decides, records and acts."""
