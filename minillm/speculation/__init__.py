"""Speculative decoding: who drafts tokens, when that is worth it, and how drafts are checked at no loss."""
