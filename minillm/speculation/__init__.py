"""Speculative decoding: who drafts tokens, when it is worth it, and how drafts are checked without changing anything."""
