"""Templates that read tensors at other places: resizing, grids of samples, regions."""
