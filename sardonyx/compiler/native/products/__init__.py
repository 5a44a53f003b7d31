"""Matrix products: what a step of one is, and the templates that are products."""
