"""Coverage-guided fuzzing of what reads bytes of others: `python -m tests.robustness.guided` runs it."""
