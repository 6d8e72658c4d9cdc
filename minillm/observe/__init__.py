"""What the engine's records tell: what steps cost whom, records, exports."""
