"""The heart of the engine, to be read in one sitting: no tensors, no network, no options.

Read in this order: request, timeline, block_pool, block_manager, seams, batch, scheduler, engine. Each of the
four seams has a trivial default; whatever a deployment may decide differently is in `minillm.policies` and
`minillm.speculation`, and nothing here knows of it. docs/architecture.md runs this package by itself.
"""
