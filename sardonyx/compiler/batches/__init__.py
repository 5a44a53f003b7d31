"""Batches that outgrow the caches: parts of a segment that are bound for a few items and repeated."""
