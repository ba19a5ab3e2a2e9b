"""Validate a dump in the notebook: run it, and keep it with what it has shown."""

import os
from pathlib import Path

NOTEBOOK = Path(__file__).with_name("validate.ipynb")
PATIENCE_S = 300


def validate(before: str, after: str, results: Path) -> int:
    """Run the notebook on two dumps, and return how many of its cells have run.

    Raises nbclient.exceptions.CellExecutionError, with the failed check, if the second dump is not good.
    """
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError as e:
        raise SystemExit("The notebook needs: pip install nbclient ipykernel pandas") from e
    results.mkdir(parents=True, exist_ok=True)
    os.environ.update(BEFORE=before, AFTER=after, PICTURE=str((results / "moved.svg").resolve()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]  # it has no types
    client = NotebookClient(notebook, kernel_name="python3", timeout=PATIENCE_S)
    # Its sockets are files, which nobody else may read.
    client.create_kernel_manager().transport = "ipc"
    try:
        client.execute()
    finally:
        nbformat.write(notebook, results / "validate.ipynb")  # type: ignore[no-untyped-call]  # as above
    return sum(cell.cell_type == "code" for cell in notebook.cells)
