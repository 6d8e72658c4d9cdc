"""`python -m minillm`: the `minillm` command, where none is installed."""

from minillm.cli import main

if __name__ == "__main__":
    main()
