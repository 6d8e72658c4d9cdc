"""The engine behind HTTP: the fifth phase, on a real wire."""
