"""The course: lessons (NN_topic.py, built into NN_topic.ipynb) and `course.lab`, the package behind them."""

import os

# A lesson shares its cores with a browser. By default the threads that compute a step spin while they wait for each
# other; when a core is busy with something else, that makes every one of a step's hundreds of parallel regions wait for
# the scheduler, and the engine becomes several times slower. Sleeping instead costs a few percent on an idle machine.
# Read once, when torch is loaded, so it has to be set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
