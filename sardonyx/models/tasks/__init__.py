"""One class for each task, as Optimum names them."""
