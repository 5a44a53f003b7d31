"""`python -m sardonyx`: the command `sardonyx`."""

from sardonyx.cli.main import main

main()
