"""`python -m minillm.models.native`: compile the C++ now, rather than in the first lesson."""

import sys

from minillm.models.native import native_kernels
from minillm.models.storage import say

say("compiling the CPU kernels for this processor, unless that was done before: under a minute")
if native_kernels() is None:
    say(f"they cannot be had here ({sys.platform}): PyTorch's own take their place, and are slower")
