"""Lesson 11b, spikes: autoscaling, refusing, degrading, cold starts. Fleets, spikes and prices are lesson 11's."""
