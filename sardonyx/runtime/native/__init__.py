"""Plans as native code walks them: their tables, images of machine code, chains, rounds, stages, the short way."""
