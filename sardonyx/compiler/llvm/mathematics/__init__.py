"""Mathematics of float vectors, one family of functions per file; `functions` names them all."""
