"""What this machine has of what minillm uses, what speed to expect of it, and how to get what is missing."""
