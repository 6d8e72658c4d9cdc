"""Lesson 11c, money: replicas or a field, hardware, routing. Fleets, spikes and prices are lesson 11's."""
