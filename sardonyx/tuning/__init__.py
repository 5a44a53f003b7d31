"""Measuring the machine: its ceilings, and the numbers by which work is cut for it."""
