"""The command `sardonyx`: one file for each subcommand."""
