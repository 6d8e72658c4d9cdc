"""The command: `minillm doctor`, or `python -m minillm.doctor` where what other commands import is broken.

Until it has looked at the version, this is read by Pythons that are too old for the rest.
"""

import io
import json
import shutil
import sys

from minillm.host.pythons import end_if_too_old


def main(as_json: bool) -> int:
    """Examine, and print. Returns the exit status: 1 where minillm can't work, or may not."""
    end_if_too_old()
    from minillm.doctor.children import examine

    report = examine()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a folder's name may be none of this terminal's letters
    print(json.dumps(report.as_dict(), indent=2) if as_json else report.as_text(shutil.get_terminal_size().columns))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main("--json" in sys.argv[1:]))
