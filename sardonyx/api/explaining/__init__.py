"""What a session tells of itself: its plan, what knobs do, and troubles by name."""
