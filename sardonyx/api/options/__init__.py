"""What callers set: options of sessions and runs, config entries, threads, adapters, and what all sessions share."""
