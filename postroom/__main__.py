"""``python -m postroom``: the command line."""

from postroom.cli.main import main

main()
