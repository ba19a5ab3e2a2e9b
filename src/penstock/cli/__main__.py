"""`python -m penstock.cli` is the command line where no script is installed."""

from penstock.cli import main

main()
