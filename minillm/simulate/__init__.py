"""The same engine on hardware nobody here owns: a price list for steps, and a clock that only it advances."""
