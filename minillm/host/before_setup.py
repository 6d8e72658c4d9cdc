"""Says where minillm can't be installed, and what to do instead: `make setup` runs it before it fetches anything."""

import sys

from minillm.host.pythons import end_if_too_old


def main() -> None:
    """End with exit status 1, and say why, where minillm can't be installed."""
    end_if_too_old()
    from minillm.host.platforms import Platform, notes

    sys.exit(next((f"{note.says}: {note.fix}" for note in notes(Platform.here()) if note.blocks), 0))


if __name__ == "__main__":
    main()
