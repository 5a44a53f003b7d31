"""The QDQ format: float operators between pairs of QuantizeLinear and DequantizeLinear.

Rules for each family of operators note in a `Plan` what is stored quantised (`plan`), the parameters follow from ranges
and weights (`parameters`), a Relu or Clip goes where the stored range clamps (`clamp`), then the pairs are written
(`insertion`).
"""
