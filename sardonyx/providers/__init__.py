"""Execution providers: what each claims, its options, how it compiles a partition."""
