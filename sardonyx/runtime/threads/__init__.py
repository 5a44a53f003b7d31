"""The threads of runs: thread pools, how they are started and ended, on which processors, and what interrupts them."""
