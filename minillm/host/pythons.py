"""Which Pythons minillm runs on. One that is too old must be told so, not end in a traceback.

So whatever is imported before the version was looked at has to be read by Python 3.6: this file, before_setup.py
beside it, the `__init__` of minillm, host and doctor, and the doctor's `__main__`.
"""

import shutil
import subprocess
import sys

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
"""The Pythons that constraints.txt has wheels for."""


def end_if_too_old() -> None:
    """End with exit status 1 where this Python is older than OLDEST_PYTHON, and say which one to get and how."""
    if sys.version_info[:2] < OLDEST_PYTHON:
        sys.exit(advice())


def advice() -> str:
    """What a user of a Python that is too old has to do."""
    this = "{}.{}.{}".format(*sys.version_info[:3])
    return (
        f"minillm needs Python {dotted(OLDEST_PYTHON)} to {dotted(NEWEST_PYTHON)}; this is {this} ({sys.executable}).\n"
        f"{newer_ones() or HOW_TO_GET_ONE}"
    )


HOW_TO_GET_ONE = """\
Install one (Debian 12, Ubuntu 24.04 and newer: apt-get install python3-venv; Fedora and RHEL: dnf install python3.12;
macOS: brew install python@3.13; elsewhere: uv python install 3.13, see https://docs.astral.sh/uv).
Then: make setup PYTHON=/path/to/python3"""


def newer_ones() -> str:
    """The commands that use a newer Python which is installed beside this one; empty where there is none."""
    for minor in range(NEWEST_PYTHON[1], OLDEST_PYTHON[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        if path is not None and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:  # no dead link
            return f"There is a newer one here: {path} -m minillm.doctor, and make setup PYTHON={path}"
    return ""


def dotted(version: "tuple[int, ...]") -> str:
    """(3, 11) -> `3.11`."""
    return ".".join(map(str, version))
