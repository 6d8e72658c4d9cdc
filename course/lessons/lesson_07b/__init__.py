"""Lesson 07b: KV caches made smaller, or kept elsewhere. Traces, needles and losses are lesson 07's."""
