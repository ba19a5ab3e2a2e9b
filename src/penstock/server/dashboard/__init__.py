"""The dashboard: pages on jobs for the browser, on the port of REST and behind the same guard.

A page is one module. It reads its content with `Visit.poll`, and acts on buttons with `Visit.act`. Both know the user
of the page, and end with the session. `components` has what pages share. To add a tab to each job:

    from penstock.server.api.access import Role
    from penstock.server.dashboard import components
    from penstock.server.dashboard.registry import job_tab
    from penstock.server.dashboard.page_session import JobVisit


    @job_tab("savepoints", "Savepoints", icon="bookmark", role=Role.VIEWER)
    def savepoints(visit: JobVisit) -> None:
        with components.card("Savepoints"):
            table = components.Table([components.Column("id", "Id"), components.Column("job_name", "Job")], key="id")
        visit.poll(visit.service.savepoints, lambda found: table.show([...]))

and list the module in `pages.py`. The rules:

- A handler changes things only within `visit.act(role, ...)`, which checks the role of the session again.
- Text from jobs and users goes into labels and rows, never into templates, HTML, JavaScript or the names of
  properties, because names that begin with ":" are evaluated.
- Blocking work is passed to `poll` or `act` as a function, which runs in a thread.
"""
