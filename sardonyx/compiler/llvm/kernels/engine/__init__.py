"""Functions of the engine itself: the executor, calls from Python, pools, measured ceilings."""
