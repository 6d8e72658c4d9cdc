"""`minillm conform`: somebody else's engine, tried on what engines get wrong."""
