"""`python -m minillm.models.native`: compile the C++ now, rather than in the first lesson.

What a learner must know begins with `! `: `make lab` shows such lines, and no others.
"""

import logging

from minillm.models.native import native_kernels
from minillm.models.native.compiling import why_none
from minillm.models.storage import say

logging.basicConfig(format="! %(message)s")  # what the compiler said against it
say("compiling the CPU kernels for this processor, unless that was done before: under a minute")
if native_kernels() is None and (why := why_none()):
    print(f"! {why}", flush=True)
