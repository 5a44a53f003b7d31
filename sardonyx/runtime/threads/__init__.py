"""The threads of runs: teams, how they are started and ended, on which processors, and what interrupts them."""
