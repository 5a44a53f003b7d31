"""Generation of tokens: decoders with caches, the loop over their steps, sampling, beams, stopping."""
