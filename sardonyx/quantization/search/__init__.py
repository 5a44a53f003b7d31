"""Quantising to a target: what each way costs in accuracy, and which nodes stay float so that it costs less."""
