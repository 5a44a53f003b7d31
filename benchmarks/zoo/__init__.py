"""The zoo: models at the sizes people use, built from seeded random weights, so that nothing has to be fetched.

`python -m benchmarks.zoo` builds them; README.md lists them.
"""
