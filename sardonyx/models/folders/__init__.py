"""What lies in the folder or the repository of a model: layouts, candidates, what is missing, what is half there."""
