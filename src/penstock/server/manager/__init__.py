"""Manager: looks at jobs and their drivers, decides, records, acts."""
