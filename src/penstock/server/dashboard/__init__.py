"""The dashboard: pages on jobs in a browser, on the port of REST and behind the same guard.

A page is one module. It asks for what it shows by `Visit.poll`, and acts on a button by `Visit.act`; both
know who has opened the page, and end with the session. What pages share is in `components`. To add a tab to each job:

    from penstock.server.api.access import Role
    from penstock.server.dashboard import components
    from penstock.server.dashboard.registry import job_tab
    from penstock.server.dashboard.page_session import JobVisit


    @job_tab("savepoints", "Savepoints", icon="bookmark", role=Role.VIEWER)
    def savepoints(visit: JobVisit) -> None:
        with components.card("Savepoints"):
            table = components.Table([components.Column("id", "Id"), components.Column("job_name", "Job")], key="id")
        visit.poll(visit.service.savepoints, lambda found: table.show([...]))

and name the module in `pages.py`. The rules: a handler changes something only within `visit.act(role, ...)`, which asks
for the role of the session again; text from jobs and users goes into labels and rows, never into templates, HTML,
JavaScript or the names of properties, for names that begin with ":" are evaluated; what blocks is given to `poll` or
`act` as a function, and is called in a thread.
"""
