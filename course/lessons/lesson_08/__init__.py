"""The instruments of lesson 08: guesses that are checked many at a time."""
