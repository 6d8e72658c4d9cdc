"""In place of the package of this name, which `make test` does without (its PYTHONPATH begins here).

jsonschema imports it if it can, to check addresses with letters beyond ASCII; it then compiles 38 grammars, which takes
every process that reads a notebook a second. No schema here has such an address.
"""

raise ImportError("left out: see tests/course/notebooks/without/rfc3987_syntax.py")
