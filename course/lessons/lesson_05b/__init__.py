"""Lesson 05b: prefill and decode on separate GPUs. Traffic and fleets are lesson 05's."""
