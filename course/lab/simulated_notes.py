"""A notebook on a simulated device: what its cells show is labelled, and what can't be had is said in a sentence."""

from html import escape

from IPython.core.interactiveshell import InteractiveShell

from course.lab.display import Html
from course.lab.notes import NotedNotebook
from course.lab.predict import Prediction
from course.lab.run import Run
from course.lab.simulated_device import SimulatedDevice
from minillm.policies.config import EngineConfig


class SimulatedNotebook(NotedNotebook):
    """Labels and notes in the notebook of a lab.

    Args:
        config: the lab's own. Runs are labelled by theirs.
    """

    def __init__(self, shell: InteractiveShell, device: SimulatedDevice, config: EngineConfig) -> None:
        super().__init__(shell)
        self._device = device
        self._label = label_of(device, config, ", as the lab was opened")

    def label_beneath(self, shown: object) -> Html | None:
        if shown is None or isinstance(shown, Prediction):
            return None
        if isinstance(shown, Run) and shown.simulated_on:
            return label_of(self._device, shown.config)
        return self._label


def label_of(device: SimulatedDevice, config: EngineConfig, when: str = "") -> Html:
    """One line for beneath a cell: what was simulated, and its error band."""
    words = (
        f"{device.label(config).capitalize()}{when}; text is a placeholder, and what Python does is this machine's. "
    )
    band = device.error_band(config)
    look = "font-size:12px;opacity:.75"
    return Html(f'<div style="{look}">{escape(words)}{band.html}</div>', words + band.text)
