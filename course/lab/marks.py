"""What a cell writes into the metadata of its outputs, for the notebook builder. Imports nothing."""

TRANSIENT = "waiting"
"""True: of no use in a stored notebook."""
FOLDED = "folded"
"""True: an example run, folded away (outcomes.py)."""
CONTROL_MOVED = "control_moved"
"""By which share a run moved in which nothing was changed; see control.py."""
QUIET = 0.2
"""A control that moved by more was run on a machine that is busy with something else."""
