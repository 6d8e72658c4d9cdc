"""The widget for review cards: a question, your answer in your head, then how well you knew it.

By keyboard alone: the focus stands on the button that comes next, so Enter shows the answer and Enter says "Good";
Tab and Shift+Tab reach the other ratings.
"""

from collections.abc import Sequence
from datetime import date
from html import escape

import ipywidgets as widgets

from course.lab.display import Html, LivePanel
from course.lessons.start.cards import CARDS, RATINGS, Card, Deck, cards_of

HINTS = {"Again": "didn't know", "Hard": "barely", "Good": "knew it", "Easy": "instantly"}
WIDE = widgets.Layout(width="auto")


class Review(LivePanel):
    """One sitting. Nothing is kept before Start is pressed.

    Args:
        cards: None = all facts, with napkin sums among them, whose numbers are today's.
    """

    def __init__(self, cards: Sequence[Card] | None = None, deck: Deck | None = None) -> None:
        self.deck = deck or Deck(cards_of(date.today()) if cards is None else cards)
        self.waiting: list[Card] = []
        self.view = widgets.HTML(layout=widgets.Layout(width="100%", max_width="720px"))
        self.start = self._button("Start reviewing", "play", self.begin)
        self.show = self._button("Show the answer", "eye", self.reveal)
        self.ratings = {
            name: self._button(f"{name}: {HINTS[name]}", "", lambda rating=name: self.rate(rating)) for name in RATINGS
        }
        self.buttons = widgets.HBox([self.start], layout=widgets.Layout(flex_flow="row wrap"))
        self.widget = widgets.VBox([self.view, self.buttons])
        if self.deck.opted_in:
            self.start.description = "Review what is due"
        self._say(self._due_words())

    def begin(self) -> None:
        """Opt in, if that has not happened, and show the first card."""
        if not self.deck.opted_in:
            self.deck.opt_in()
        self.waiting = self.deck.due()
        self._ask()

    def reveal(self) -> None:
        """Turn the card over."""
        if self.waiting:
            card = self.waiting[0]
            answer = escape(card.answer_text).replace("\n", "<br>")
            link = f'<br><a href="{escape(card.link)}" target="_blank">→ lesson {card.lesson}</a>' if card.link else ""
            self._say(f"<b>{escape(card.question)}</b><hr>{answer}{link}")
            self._offer(*self.ratings.values(), focus=self.ratings["Good"])

    def rate(self, rating: str) -> None:
        """How well it was known, one of RATINGS. What was not known comes again at the end of the sitting."""
        if not self.deck.opted_in:  # all that was kept has been erased meanwhile
            self.waiting.clear()
            self._say(self._due_words())
            self._offer(self.start)
        if self.waiting:
            card = self.waiting.pop(0)
            self.deck.review(card.key, rating)
            if rating == "Again":
                self.waiting.append(card)
            self._ask()

    def _ask(self) -> None:
        if not self.waiting:
            more = len(self.deck.due())  # new ones: what was due has just been reviewed
            self._say(f"Done for now. Press again for {more} new ones." if more else "Done for now.")
            self._offer(self.start)
            return
        card = self.waiting[0]
        self._say(f"<small>lesson {card.lesson}, {len(self.waiting)} left</small><br><b>{escape(card.question)}</b>")
        self._offer(self.show, focus=self.show)

    def _due_words(self) -> str:
        """What a review would show now."""
        due = len(self.deck.due())
        kept = "" if self.deck.opted_in else " Nothing is stored until you start."
        return f"{due} of {len(self.deck.cards)} cards are waiting for you.{kept}"

    def _say(self, html: str) -> None:
        look = "border:1px solid var(--jp-border-color2,#d0d7de);border-radius:8px;padding:10px 16px;line-height:1.5"
        self.view.value = f'<div style="{look}" aria-live="polite">{html}</div>'

    def _offer(self, *buttons: widgets.Button, focus: widgets.Button | None = None) -> None:
        self.buttons.children = buttons
        if focus is not None:
            focus.focus()

    def _button(self, label: str, icon: str, press: object) -> widgets.Button:
        button = widgets.Button(description=label, icon=icon, layout=WIDE)
        button.on_click(lambda _: press())
        return button

    def static_html(self) -> str:
        return f"{self.view.value}<p><small>Run this cell to review them.</small></p>"


def export(deck: Deck | None = None) -> Html:
    """A link that saves all cards as a file for Anki (File, Import)."""
    from base64 import b64encode

    text = (deck or Deck(CARDS)).as_csv()
    data = b64encode(text.encode()).decode()
    link = f'<a download="minillm-cards.csv" href="data:text/csv;base64,{data}">Save all cards as CSV, for Anki</a>'
    return Html(f"<p>{link}</p>", text)
