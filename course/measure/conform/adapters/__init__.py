"""Adapters for engines that were tried: docs/conformance.md says what was found."""
