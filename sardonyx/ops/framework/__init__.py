"""What operators are made of: facts about values, the operator class, the registry, inference, the fallback."""
