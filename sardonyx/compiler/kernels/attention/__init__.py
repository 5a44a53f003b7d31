"""Attention in every form, rotary embedding and caches."""
