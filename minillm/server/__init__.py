"""The OpenAI-compatible server: the engine behind HTTP, and what a server owes its users when things go wrong."""
