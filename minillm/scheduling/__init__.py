"""Who runs in the next step, and how many tokens each gets."""
