"""Attention over a paged KV cache: one small interface, several backends."""
