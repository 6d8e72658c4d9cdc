"""The paged KV cache: who holds which block, which blocks can be shared, which can be taken."""
