"""What cells and the notebook builder tell each other: metadata of outputs, and a variable. Imports nothing."""

TRANSIENT = "waiting"
"""True: of no use in a stored notebook."""
FOLDED = "folded"
"""True: an example run, folded away (outcomes.py)."""
EXAMPLE = "MINILLM_EXAMPLE"
"""Environment variable: this run is an example for readers, and shows what was measured without a bet (build.py)."""
CONTROL_MOVED = "control_moved"
"""Share by which a run moved in which nothing was changed; see control.py."""
QUIET = 0.2
"""A control that moved by more was run on a machine that is busy with something else."""
DISTURBED = "disturbed"
"""True: this output says that the machine was busy with something else, and to run it again; see finding.py."""
