"""Lesson 06b: mixtures of experts, latent attention, and who holds which part of them."""
