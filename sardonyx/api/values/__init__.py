"""Values of runs: tensors in NumPy arrays and native memory, sparse ones, where they lie, how they are exchanged."""
