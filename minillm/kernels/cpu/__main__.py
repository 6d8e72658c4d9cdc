"""`python -m minillm.kernels.cpu`: compile the C++ now, rather than in the first lesson.

What a learner must know begins with `! `: `make lab` shows such lines, and no others.
"""

import logging
import textwrap

from minillm.host.storage import say
from minillm.kernels.cpu import native_kernels
from minillm.kernels.cpu.compiling import why_none


class ForTheReader(logging.Formatter):
    """`! ` before each line of a message: it may have several."""

    def format(self, record: logging.LogRecord) -> str:
        return textwrap.indent(super().format(record), "! ", lambda line: True)


handler = logging.StreamHandler()
handler.setFormatter(ForTheReader())
logging.basicConfig(handlers=[handler])  # what the compiler said against it
if why := why_none():
    print(textwrap.indent(why, "! "), flush=True)
else:
    say("compiling the CPU kernels for this processor, and trying them, unless that was done before: under a minute")
    native_kernels()
