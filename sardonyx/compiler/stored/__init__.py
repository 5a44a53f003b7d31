"""Plans and programs as files keep them: written after a run, and made ready again in another process."""
