"""The memory of runs: arenas and their layouts, execution contexts of concurrent runs, constants, mapped pages,
results."""
