"""The commands for practice start without the libraries that take seconds to import."""

import json
import subprocess
import sys

HEAVY = ("torch", "transformers", "pandas", "matplotlib", "ipywidgets", "IPython", "httpx")


BESIDE_THE_SITE = ("torch", "pandas", "fsrs", "transformers", "matplotlib", "safetensors", "huggingface_hub")


def test_the_site_is_written_without_what_its_small_environment_lacks() -> None:
    """`make site` installs nothing of these (SITE_PACKAGES), nor anything that needs them."""
    script = f"import sys; sys.modules.update(dict.fromkeys({BESIDE_THE_SITE})); import course.site.__main__"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_commands_for_practice_import_nothing_heavy() -> None:
    commands = ", ".join(f"course.{name}.cli" for name in ("incidents", "drills", "rounds", "napkin"))
    script = f"import json, sys, {commands}; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
