"""A control per technique, made from one list: what EngineConfig calls it, how to show it, what it does."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets

from minillm import EngineConfig

OFF = "off"
"""What a widget shows for a field that is None: a slider cannot hold None."""


@dataclass(frozen=True)
class Control:
    """One field of EngineConfig and the widget for it."""

    field: str
    label: str
    help: str
    """What it does to the five phases, shown on hover."""
    choices: tuple[Any, ...] = ()
    """Values to pick from; None is the widget's OFF. Empty = a checkbox."""

    def widget(self, value: Any) -> widgets.Widget:
        """The widget, set to `value`; a value that is not among the choices is added to them."""
        style = {"description_width": "118px"}
        common = {"tooltip": self.help, "layout": widgets.Layout(width="auto")}
        if not self.choices:
            return widgets.Checkbox(value=bool(value), description=self.label, style=style, **common)
        choices = self.choices if value in self.choices else _in_order((*self.choices, value))
        options = [OFF if choice is None else choice for choice in choices]
        is_slider = any(isinstance(choice, (int, float)) for choice in choices)
        kind = widgets.SelectionSlider if is_slider else widgets.Dropdown
        start = OFF if value is None else value
        return kind(options=options, value=start, description=self.label, style=style, **common)


def _in_order(choices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Numbers ascending, None last."""
    return tuple(sorted(choices, key=lambda choice: (choice is None, choice if choice is not None else 0)))


GROUPS: dict[str, tuple[Control, ...]] = {
    "Batching": (
        Control("batching", "batching",
                "continuous: requests join at any step. static: they wait for the batch to end. none: one at a time.",
                ("continuous", "static", "none")),
        Control("max_num_seqs", "seats",
                "Requests that run at once. Too few: the queue grows. Too many: every step gets slower.",
                (1, 2, 3, 4, 6, 8, 12, 16, 32)),
        Control("max_num_batched_tokens", "token budget",
                "Most tokens one step computes. Large: prefill ends sooner. Small: those who decode wait less.",
                (32, 64, 128, 256, 512, 1024, 2048)),
        Control("enable_chunked_prefill", "chunked prefill",
                "Computes a long prompt in several steps, so that others go on decoding meanwhile."),
        Control("long_prefill_token_threshold", "chunk limit",
                "Most prompt tokens one request gets in a step, whatever the budget has left.",
                (16, 32, 64, 128, 256, 512, None)),
        Control("scheduling_order", "order",
                "Who takes the next seat: first come, shortest prompt, priority, or two lanes by prompt length.",
                ("fcfs", "shortest_prompt", "priority", "two_lane")),
    ),
    "KV cache": (
        Control("enable_prefix_caching", "prefix caching",
                "Reuses the KV blocks of a prompt beginning that was computed before: prefill shrinks."),
        Control("kv_reservation", "reservation",
                "on_demand: a block when it is needed. max_len: the whole window up front, most of it empty.",
                ("on_demand", "max_len")),
        Control("num_kv_blocks", "KV blocks",
                "Size of the pool, blocks of 16 tokens. Too small: requests wait, or are preempted in mid-answer.",
                (24, 48, 96, 144, 192, 256, 384, 512, 1024)),
        Control("preemption", "preemption",
                "When the pool runs dry: recompute throws the victim's KV away, swap copies it to host memory.",
                ("recompute", "swap")),
    ),
    "Attention": (
        Control("attention_backend", "attention",
                "sdpa: the fused kernel. eager: the textbook one, which writes the whole score matrix to memory.",
                ("auto", "sdpa", "eager")),
    ),
    "Admission": (
        Control("max_queue_len", "queue limit",
                "More waiting requests than this are refused at once, instead of waiting in vain.",
                (1, 2, 4, 8, 16, None)),
        Control("queue_timeout_s", "queue timeout, s",
                "A request that has waited this long is sent away.", (0.5, 1.0, 2.0, 5.0, 10.0, None)),
        Control("max_prompt_tokens", "prompt limit",
                "A longer prompt is refused: nobody waits behind it.", (64, 128, 256, 512, 1024, None)),
    ),
}  # fmt: skip


class Controls:
    """The widgets of all controls, by field name.

    Args:
        config: where they start.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.start = config
        self.widgets: dict[str, widgets.Widget] = {
            control.field: control.widget(getattr(config, control.field))
            for group in GROUPS.values()
            for control in group
        }

    def __getitem__(self, field: str) -> widgets.Widget:
        return self.widgets[field]

    def config(self) -> EngineConfig:
        """The configuration that the widgets show. Fields without a widget stay as they were.

        Raises:
            ConfigError: the combination is not valid.
        """
        shown = {field: widget.value for field, widget in self.widgets.items()}
        return self.start.replace(**{field: None if value == OFF else value for field, value in shown.items()})

    def set(self, fields: Mapping[str, Any]) -> None:
        """Move widgets to these values."""
        for field, value in fields.items():
            self.widgets[field].value = OFF if value is None else value

    def reset(self) -> None:
        """Move all widgets back to where they started."""
        self.set({field: getattr(self.start, field) for field in self.widgets})

    def panel(self) -> widgets.Widget:
        """All controls, a column a group; columns wrap on a narrow page."""
        columns = []
        for title, group in GROUPS.items():
            heading = widgets.HTML(f"<b>{title}</b>")
            column = [heading, *(self.widgets[control.field] for control in group)]
            columns.append(
                widgets.VBox(column, layout=widgets.Layout(flex="1 1 270px", min_width="250px", max_width="380px"))
            )
        # Attention has one control and admission three: they share a column.
        columns[2:] = [widgets.VBox([*columns[2].children, *columns[3].children], layout=columns[3].layout)]
        return widgets.Box(columns, layout=widgets.Layout(flex_flow="row wrap", width="100%"))
