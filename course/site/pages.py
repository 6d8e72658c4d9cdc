"""From a notebook, or a Markdown page, to the parts of a page."""

import ast
import base64
import functools
import html
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from nbconvert.filters import Highlight2HTML, markdown2html
from nbformat import NotebookNode

from course.lab.build import RECORDED
from course.lab.glossary import terms
from course.lab.marks import FOLDED
from course.lab.outcomes import ExampleRun, as_html, runs_of
from course.lab.recording import BET, FRAMES, OUTCOME, data_attribute, read_recording
from course.lab.replay import PACKED
from course.lab.sheet import PACKED as PACKED_SHEET
from course.lessons.start.contents import BET as BET_KEY
from course.tab.checks import ANSWERED
from course.tab.explorers import LIVE as DRAWN_IN_A_TAB

LIVE = re.compile(r"<(\w+): run this cell to use it>")
CHECK = re.compile(r"^check\.card\(\)", re.M)
PICTURE = re.compile(r'<img\b[^>]*?src="data:image/svg\+xml;base64,([^"]+)"[^>]*>')
CARD = re.compile(r'<rect width="100%" height="100%" rx="6" fill="#ffffff"/>')
LINK = re.compile(r'href="(?!https?:|#|mailto:)([^"#]*)(#[^"]*)?"')
HEADING = re.compile(r'<h([1-3]) id="([^"]*)">(.*?)<a class="anchor-link"')
FRAMES_HERE = re.compile(rf'{FRAMES}="(\d+)"')
MATH_BLOCK, MATH = re.compile(r"\$\$(.+?)\$\$", re.S), re.compile(r"(?<![\\$\w])\$([^$<]+?)\$(?![\d\w])")
IMPORT = re.compile(r"^from ([\w.]+) import ([\w, ]+)$", re.M)
CALL = re.compile(r"(\w+)\.(\w+)\(([^()]*|\".*\")\)")
TERM = re.compile(r'<a href="glossary\.html#([\w-]+)"')
SCORED = re.compile(rf' {OUTCOME}="[^"]*"')
NAMED = re.compile(r"<h([1-6]) id=.*?</h\1>|<svg\b.*?</svg>", re.S)
ID = re.compile(r'(?<=\sid=")[^"]+')
SIGNPOST = "\n\n---\n\n"
highlighted = Highlight2HTML()


@dataclass(frozen=True)
class PagePart:
    """A piece of a page, in order."""

    kind: str
    """prose, output, bet, outcome (of the bet above; its key is `bet`), live (needs a kernel), or check."""
    html: str
    code: str = ""
    """The cell's source, highlighted; shown folded."""
    bet: str = ""
    key: str = ""
    """A bet's name in a learner's progress."""
    panel: str = ""
    """What kind of panel it is, if it is live."""
    other: ExampleRun | None = None
    """The same outcome on another machine."""


@dataclass(frozen=True)
class Page:
    """One page, before its template."""

    name: str
    """Its file, without .html."""
    title: str
    parts: tuple[PagePart, ...]
    source: str
    """Where it comes from, from the repository's root."""

    @property
    def lesson(self) -> str:
        """The number of the lesson that it is; of another page, something else that no lesson has."""
        return self.name.partition("_")[0]

    @property
    def headings(self) -> list[tuple[str, str]]:
        """(anchor, words) of its second-level headings."""
        found = (match.groups() for part in self.parts for match in HEADING.finditer(part.html))
        return [(anchor, re.sub(r"<[^>]+>", "", words)) for level, anchor, words in found if level == "2"]

    @property
    def is_drawn(self) -> bool:
        """Whether something on it is drawn by the dashboard's script."""
        return any(PACKED in part.html for part in self.parts)

    @property
    def has_instruments(self) -> bool:
        """Whether an explorer, a worksheet or a check is on it that Python in the tab answers."""
        held = any(each in part.html for part in self.parts for each in (FRAMES, PACKED_SHEET))
        return held or self.is_checked_here

    @property
    def is_checked_here(self) -> bool:
        """Whether its check is answered on the page."""
        return self.lesson in ANSWERED

    @property
    def teaser(self) -> str:
        """What stands on its card."""
        return whole_sentences(self.summary)

    @property
    def summary(self) -> str:
        """Its first paragraph, in plain words, for cards and search engines."""
        found = re.search(r"<p>(.*?)</p>", self.parts[0].html, re.S)
        return _words(found.group(1)) if found else self.title


CARD_LENGTH = 170
"""Characters on a card."""
SENTENCE = re.compile(r"(?<=[.?!])[\"”)]?\s+")


def whole_sentences(text: str) -> str:
    """As many from the beginning as a card has room for, at least one."""
    ends = [found.start() + len(found.group().rstrip()) for found in SENTENCE.finditer(text)] + [len(text)]
    return text[: max((end for end in ends if end <= CARD_LENGTH), default=ends[0])]


def notebook_page(path: Path, names: Mapping[str, str]) -> Page:
    """A lesson as it is committed: text, example run, bets.

    Args:
        names: by source, from the repository's root: the page that it has become. Other links keep their words only.
    """
    root = path.parents[1]
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source = notebook.cells[-1].source.partition(SIGNPOST)[0]  # the page has links of its own
    found = parts_of(notebook, RECORDED / path.stem)
    parts = tuple(distinct(_linked(part, path, root, names) for part in found))
    return Page(names[str(path.relative_to(root))], _title(parts), parts, str(path.relative_to(root)))


def map_page(start: Page) -> Page:
    """The start page without what only a notebook does: progress, and review cards."""
    first, last = (
        next(i for i, part in enumerate(start.parts) if f'<h2 id="{name}"' in part.html)
        for name in ("Four-paths", "Review-cards")
    )
    opening = start.parts[first].html.partition("<h2")[2].replace("</h2>", "</h1>", 1)
    parts = (PagePart("prose", f"<h1{opening}"), *start.parts[first + 1 : last])
    return replace(start, title=_title(parts), parts=parts)


def markdown_page(path: Path, root: Path, names: Mapping[str, str]) -> Page:
    text = with_math(markdown2html(path.read_text(encoding="utf-8")))
    parts = (_linked(PagePart("prose", HEADING.sub(_with_slug, text)), path, root, names),)
    return Page(names[str(path.relative_to(root))], _title(parts), parts, str(path.relative_to(root)))


def _with_slug(heading: re.Match[str]) -> str:
    """A heading that links in both styles lead to: the notebooks', and code hosts'."""
    anchor, slug = heading.group(2), _slug(heading.group(2))
    return heading.group() if slug == anchor else f'<a id="{slug}"></a>{heading.group()}'


def _slug(anchor: str) -> str:
    """What code hosts call a heading; notebooks keep its capitals and punctuation."""
    return re.sub(r"[^\w-]", "", html.unescape(anchor).lower())


def _title(parts: tuple[PagePart, ...]) -> str:
    found = HEADING.search(parts[0].html)
    return html.unescape(re.sub(r"<[^>]+>", "", found.group(3))) if found else "minillm"


def parts_of(notebook: NotebookNode, recorded: Path) -> Iterator[PagePart]:
    bet, imported = "", _imported(notebook)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            yield PagePart("prose", with_math(markdown2html(cell.source)))
            continue
        code = highlighted(cell.source, language="python")
        shown = "".join(map(_shown, cell.outputs))
        is_folded = any(FOLDED in output.get("metadata", {}) for output in cell.outputs)
        shown, other = runs_of(shown) if is_folded else (shown, None)
        shown = inlined(shown)
        shown = FRAMES_HERE.sub(functools.partial(_explorer, recorded, _maker(cell.source, imported)), shown)
        plain = (output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        panel = next((found.group(1) for found in map(LIVE.match, plain) if found), "")
        if BET in shown:
            bet = cell.id
            key = found.group(1) if (found := BET_KEY.search(cell.source)) else ""
            yield PagePart("bet", shown, code, bet, key)
        elif is_folded:
            yield PagePart("outcome", shown, code, bet, other=other and _beside(other))
        elif CHECK.search(cell.source):
            yield PagePart("check", shown, code)
        else:
            is_live = panel and not any(held in shown for held in (FRAMES, PACKED, PACKED_SHEET))
            yield PagePart("live" if is_live else "output", shown, code, panel=panel)


def _shown(output: NotebookNode) -> str:
    """As HTML. A method's source that was printed loses its indentation: phones are narrow."""
    if output.output_type != "stream":
        return as_html(output)
    return as_html(NotebookNode({**output, "text": textwrap.dedent(output.text).strip("\n")}))


def distinct(parts: Iterable[PagePart]) -> Iterator[PagePart]:
    """Parts of one page with each id once: a heading or a picture that comes again has ids of its own."""
    seen: Counter[str] = Counter()

    def renamed(piece: re.Match[str]) -> str:
        text = piece.group()
        ids = set(ID.findall(text))
        for again in ids & seen.keys():
            text = re.sub(rf'(?<=["#]){re.escape(again)}(?=[")])', f"{again}-again{seen[again]}", text)
        seen.update(ids)
        return text

    for part in parts:
        shown, other = NAMED.sub(renamed, part.html), part.other
        yield replace(part, html=shown, other=other and replace(other, html=NAMED.sub(renamed, other.html)))


def _beside(other: ExampleRun) -> ExampleRun:
    """For a page: its pictures follow the theme; it scores no bet and moves nothing. The run on 2 cores does."""
    return replace(other, html=FRAMES_HERE.sub("", SCORED.sub("", inlined(other.html))))


def _imported(notebook: NotebookNode) -> dict[str, str]:
    """By the name that a notebook's cells use: where it comes from, with dots."""
    lines = (found for cell in notebook.cells if cell.cell_type == "code" for found in IMPORT.findall(cell.source))
    return {name: f"{module}.{name}" for module, names in lines for name in names.split(", ")}


def _maker(source: str, imported: Mapping[str, str]) -> str:
    """The attribute that names the function that makes a cell's explorer, where it can be called in a tab; else ""."""
    if (found := CALL.fullmatch(source.rstrip().rpartition("\n")[2])) is None:
        return ""
    owner, name, given = found.groups()
    place = ":".join(f"{imported.get(owner, owner)}.{name}".removeprefix("course.lessons.").rsplit(".", 1))
    if place not in DRAWN_IN_A_TAB:
        return ""
    return data_attribute("data-explorer", {"place": place, "given": ast.literal_eval(f"[{given}]")})


def _explorer(recorded: Path, maker: str, found: re.Match[str]) -> str:
    """What a page needs of an explorer before anything is moved: all but the pictures."""
    path = recorded / f"{found.group(1)}.json.gz"
    recording = read_recording(path)
    plays = str(recording["plays"]).lower()
    name = f"{path.parent.name}/{found.group(1)}"
    controls = data_attribute("data-controls", recording["controls"])
    return f'{FRAMES}="{name}" data-plays="{plays}"{controls}{maker}'


def with_math(prose: str) -> str:
    """LaTeX between dollars as MathML, which browsers draw themselves."""
    block = MATH_BLOCK.sub(lambda found: f'<div class="math">{_mathml(found.group(1), "block")}</div>', prose)
    return MATH.sub(lambda found: _mathml(found.group(1), "inline"), block)


def _mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex).replace(r"\$", "$"), display=display).replace("$", "&#36;")


def inlined(shown: str) -> str:
    """Pictures that were made images for readers without a kernel (frozen.py) as SVG again: it follows the theme."""
    return PICTURE.sub(lambda found: CARD.sub("", base64.b64decode(found.group(1)).decode()), shown)


def _linked(part: PagePart, path: Path, root: Path, names: Mapping[str, str]) -> PagePart:
    """With links to other sources turned into links to their pages."""

    def to_page(found: re.Match[str]) -> str:
        target = (path.parent / html.unescape(found.group(1))).resolve()
        name = names.get(str(target.relative_to(root))) if target.is_relative_to(root) else None
        # What has no page lies in the repository: nothing to follow here.
        return f'href="{name}.html{found.group(2) or ""}"' if name else f'data-file="{found.group(1)}"'

    other = part.other and replace(part.other, html=LINK.sub(to_page, part.other.html))
    return replace(part, html=with_meanings(LINK.sub(to_page, part.html)), other=other)


def with_meanings(shown: str) -> str:
    """Links to glossary terms with what they mean, which terms.js shows beside them."""

    def with_meaning(found: re.Match[str]) -> str:
        meaning = _meanings().get(found.group(1))
        return f'{found.group()} data-means="{html.escape(meaning)}"' if meaning else found.group()

    return TERM.sub(with_meaning, shown)


@functools.cache
def _meanings() -> dict[str, str]:
    """Each term's meaning in plain words, by its anchor."""
    return {term.anchor: _words(markdown2html(term.meaning)) for term in terms()}


def _words(shown: str) -> str:
    """HTML as plain words."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", shown)).split())
