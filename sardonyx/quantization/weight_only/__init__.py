"""Weights of a few bits in blocks, each with a scale, while activations stay real.

`blocks` has what all methods share; the methods are `rounding` (to the nearest), `k_quant`, `half_quadratic` (HQQ) and
`gptq`, whose second moments `moments` collects. `layouts` writes quantised weights as operators take them,
`model_graphs` finds the nodes and their weights, `replacement` puts quantised nodes in their place, and `opsets` raises
models to the version that such nodes need. `configs` has the configurations that callers pass.
"""
