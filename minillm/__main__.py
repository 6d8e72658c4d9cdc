"""`python -m minillm` is the `minillm` command."""

from minillm.cli import main

main()
