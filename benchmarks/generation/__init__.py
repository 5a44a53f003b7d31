"""Generation side by side: tokens a second here, through Optimum and in PyTorch."""
