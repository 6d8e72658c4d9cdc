"""Lesson 10b: the network between client and server. Relays and trips are lesson 10's."""
