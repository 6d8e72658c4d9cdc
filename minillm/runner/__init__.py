"""What carries out a scheduled step: torch on a CPU or GPU, or a simulator."""
