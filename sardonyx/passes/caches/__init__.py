"""Decoders whose caches have one length, of which a number says how much is filled, and are written in place."""
