"""The heart of the engine, to be read in one sitting: no tensors, no network.

Begin with the docstring of scheduler.py: it's the one rule. Then request, batch, block_pool, block_manager, scheduler,
engine; and seams, through which everything optional comes: each has a trivial default, and a deployment's own choices
are in `minillm.policies` and `minillm.speculation`. The rest keeps books: timeline (stamps and phases), step_log (what
steps did), params (what callers may set), errors. docs/architecture.md shows this package running by itself.
"""
