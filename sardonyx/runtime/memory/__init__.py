"""The memory of runs: arenas and their layouts, lanes of concurrent runs, constants, mapped pages, results."""
