"""From a model to a compiled one: its inputs and outputs, providers, rewrites that options ask for, compilation."""
