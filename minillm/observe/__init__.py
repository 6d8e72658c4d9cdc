"""What the engine's records tell: what steps cost whom, summaries, exports."""
