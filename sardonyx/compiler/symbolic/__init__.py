"""Plans for sizes that were not bound before: symbolic plans, which are evaluated."""
