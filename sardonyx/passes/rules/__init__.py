"""Rewrite rules, one family a file."""
