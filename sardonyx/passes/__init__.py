"""Rewrites of a model that keep its meaning: `pipeline` names them in order, `rule` is what a fusion is written in."""
