"""A run, or some repeats of a measurement, in a few numbers and a table."""
