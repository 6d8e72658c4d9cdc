"""The pictures. Each module draws one, and each picture answers one question."""
