"""Decoders and the checkpoints they are loaded from."""
