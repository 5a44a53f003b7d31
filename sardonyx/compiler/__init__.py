"""From operators to executable steps: kernels, their renderings and the plan of a graph."""
