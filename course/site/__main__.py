"""python -m course.site FOLDER [--serve] [--url URL]: write the static site."""

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import shutil
import sys
import webbrowser
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from nbconvert.filters import markdown2html

from course.drills.library import ALL as DRILLS
from course.grading.exercises import catalogue
from course.lab.build import COURSE, RECORDED, lesson_sources
from course.lab.display import phase_strip
from course.lab.replay import packed
from course.lab.view import bundle, library
from course.lab.view.trace import Told
from course.lessons.start.contents import lessons as known_lessons
from course.lessons.start.contents import written as minutes_told
from course.rounds.library import IDS as ROUNDS
from course.rounds.library import find_round
from course.site import search, your_progress
from course.site.pages import Page, map_page, markdown_page, notebook_page, with_math
from course.tab import calculator, challenge, exercises
from course.tab import files as tab_files
from course.tab.model import files as model_files
from minillm.core.errors import MinillmError
from minillm.host.errors import StorageError

HERE, ROOT = Path(__file__).parent, COURSE.parent
TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
)
FRONT_TRAFFIC, FRONT_ROW = "chat", 7
"""The recorded run that the front page plays, and the request that it follows."""
GLOSSARY = "course/glossary.md"
GUIDES = ("course/guide_2am.md", "course/guide_debugging.md", "course/guide_questions.md")
DOCS = tuple(
    f"docs/{name}.md"
    for name in ("simulator", "engine", "server", "monitoring", "measured", "incidents", "load-testing", "reading_vllm")
)


def page_names() -> dict[str, str]:
    """By source, from the repository's root: the name of the page that it becomes."""
    lessons = {f"course/{path.stem}.ipynb": path.stem for path in lesson_sources()}
    pages = {source: Path(source).stem for source in (*GUIDES, GLOSSARY, *DOCS)}
    return {**lessons, **pages, "course/start.ipynb": "map", "README.md": "index"}


def pages() -> Iterator[Page]:
    names = page_names()
    for source in names:
        if source.endswith(".ipynb"):
            page = notebook_page(ROOT / source, names)
            yield map_page(page) if page.name == "map" else page
        elif source != "README.md":
            yield markdown_page(ROOT / source, ROOT, names)


def opening(lessons: Sequence[Page]) -> Page:
    """The first bet of all with what decides it, for the front page.

    Raises:
        ValueError: no notebook has one that a page can read, and what came out right below it.
    """
    pairs = ((page, i, pair) for page in lessons for i, pair in enumerate(itertools.pairwise(page.parts)))
    bets = ((page, i) for page, i, (bet, then) in pairs if (bet.kind, then.kind) == ("bet", "outcome"))
    if (found := next(bets, None)) is None:
        raise ValueError("no lesson's notebook has a bet for the front page: python -m course.lab.build 00")
    lesson, start = found
    after = itertools.takewhile(lambda part: part.kind == "outcome", lesson.parts[start + 1 :])
    return replace(lesson, parts=(lesson.parts[start], *after))


def write(folder: Path, url: str = "", with_python: bool = True) -> list[Path]:
    """The whole site. Returns its pages.

    Args:
        with_python: the course's Python runs in the pages; without, they have recordings.
    """
    TEMPLATES.globals["url"] = url
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "static", folder / "static", ignore=shutil.ignore_patterns("README.md"))
    shutil.copytree(COURSE / "images", folder / "images", ignore=shutil.ignore_patterns("README.md"))
    for picture in (ROOT / "docs").glob("*.png"):
        shutil.copy(picture, folder)
    write_frames(folder / "frames")
    simulated_on = write_dashboard(folder / "static")
    TEMPLATES.globals["python"] = write_python(folder / "tab") if with_python else ""
    model_bytes = write_model(folder / "model") if TEMPLATES.globals["python"] else 0
    write_views(folder / "static")
    made = list(pages())
    lessons = [page for page in made if page.source.endswith(".ipynb") and page.name != "map"]
    common = {
        "lessons": lessons,
        "guides": [page for page in made if page.source in GUIDES],
        "docs": [page for page in made if page.source in DOCS],
    }
    rendered = {page.name: rendering("page", page=page, before=None, after=None) for page in made}
    for before, page, after in zip((None, *lessons), lessons, (*lessons[1:], None)):
        rendered[page.name] = rendering("page", page=page, before=before, after=after)
    chat = library.opening(FRONT_TRAFFIC)
    about = {
        each.source.stem: {"minutes": minutes_told(each.minutes()), "phases": phase_strip(each.phases).html}
        for each in known_lessons().values()
    }
    front = {
        "about": about,
        "alone": packed({"run": alone(chat, 0), "row": 0}),
        "replay": packed({"run": chat, "row": FRONT_ROW}),
        "replay_on": simulated_on,
    }
    rendered |= {"index": rendering("index", **common, **front, opening=opening(lessons))}
    rendered |= {"incidents_to_play": rendering("incidents_to_play"), "incident": rendering("incident")}
    rendered |= {
        "drills": rendering("drills", drills=DRILLS),
        "calculator": rendering("calculator", stack=calculator.stack(), sheet=packed(calculator.sheet().told(False))),
        "dashboard": rendering("dashboard", on=simulated_on),
        "chat": rendering("chat", model=model_bytes),
    }
    for number, drill in enumerate(DRILLS, 1):
        rendered[f"drill_{drill.id}"] = rendering("drill", drill=drill, number=number)
    rendered |= {
        "rounds": rendering("rounds", rounds=list(map(find_round, ROUNDS))),
        "napkin": rendering("napkin"),
    }
    for name in ROUNDS:
        rendered[f"round_{name}"] = rendering("round", round=find_round(name))
    rendered |= {"beat": rendering("beat", data=json.dumps(challenge.exported()))}
    rendered |= {"progress": rendering("progress", course=json.dumps(your_progress.course_told(lessons)))}
    work = [exercises.exported(each) for each in exercises.offered()]
    rendered |= {"exercises": rendering("exercises", exercises=work, others=len(catalogue()) - len(work))}
    for each in work:
        asked = with_math(markdown2html(each.pop("statement").replace("## ", "# ", 1)))  # a page's own heading
        rendered[f"exercise_{each['id']}"] = rendering(
            "exercise", exercise=each, statement=asked, data=json.dumps(each)
        )
    write_search(folder / "static" / "search_index.js", rendered)
    rendered |= {page.name.partition("_")[0]: rendering("moved", page=page) for page in lessons}
    for name, text in rendered.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    write_offline(folder)
    return [folder / f"{name}.html" for name in rendered]


def write_search(file: Path, rendered: Mapping[str, str]) -> None:
    """What the search box loads when it's used: a script, since a page opened from disk may load nothing else."""
    openings = {f"drill_{drill.id}": drill.drawn().opening for drill in DRILLS}
    asked = {f"round_{each.id}": f"{each.hardware}; {each.model}." for each in map(find_round, ROUNDS)}
    told = json.dumps(search.index(rendered, openings | asked, Path(GLOSSARY).stem), ensure_ascii=False)
    file.write_text(f"minillmSearch.loaded({told});\n", encoding="utf-8")


def write_offline(folder: Path) -> None:
    """The service worker: it keeps what the first page, the dashboard and Python need, and whatever is opened."""
    first = [folder / "index.html", folder / "dashboard.html", *folder.glob("static/*.*"), *folder.glob("tab/*")]
    first += [*folder.glob("model/decoder.*"), *folder.glob("model/model.json")]  # small; decoder.js keeps the weights
    names = ["./", *sorted(str(path.relative_to(folder)) for path in first)]
    ours = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".bin")
    everything = (path.read_bytes() for path in ours)  # weights have their content in their name
    build = hashlib.sha256(b"".join(everything)).hexdigest()[:16]
    told = f"self.minillm = {json.dumps({'build': build, 'first': names})};\n"
    (folder / "offline.js").write_text(told + (HERE / "offline.js").read_text(encoding="utf-8"), encoding="utf-8")


def rendering(template: str, **values: object) -> str:
    return TEMPLATES.get_template(f"{template}.html").render(values)


def alone(run: Told, i: int) -> Told:
    """One request of a run, without those beside it and without the engine's steps below."""
    own = (
        {
            **step,
            "preempted": [0] * (i in step["preempted"]),
            "shares": [[0, *each[1:]] for each in step["shares"] if each[0] == i],
        }
        for step in run["steps"]
    )
    steps = [step for step in own if step["shares"] or step["preempted"]]
    row = run["rows"][i]
    return {**run, "blocks": 0, "rows": [row], "steps": steps, "kv": [], "end": row["borders"][-1]}


def write_dashboard(folder: Path) -> str:
    """The dashboard's script, style and recorded runs. Returns what those ran on."""
    held = library.page_library(library.start_config())
    (folder / "dashboard.js").write_text(bundle.page_script(), encoding="utf-8")
    (folder / "dashboard_runs.js").write_text(f'minillmDashboard.mountAll("{packed(held)}");\n', encoding="utf-8")
    shutil.copy(bundle.STYLE, folder / "dashboard.css")
    return library.note_of(held["runs"]["chat"][0]["run"]).partition("(")[2].rstrip(")")


def write_python(folder: Path) -> str:
    """What the pages' Python starts from. Returns its script; nothing, where it can't be fetched: a site without it has
    recordings."""
    try:
        tab_files.write(folder)
    except (tab_files.TabFilesError, StorageError) as error:
        print(f"Without Python in the pages: {error}", file=sys.stderr)
        return ""
    return "tab/worker.js"


def write_model(folder: Path) -> int:
    """The model that a reader may fetch. Returns its bytes; 0, where it can't be had."""
    try:
        return model_files.write(folder)
    except (MinillmError, ImportError) as error:
        print(f"Without a model in the pages: {error}", file=sys.stderr)
        return 0


def write_views(folder: Path) -> None:
    """Scripts and styles of the incident console, drills, design rounds, napkin sums, lessons' instruments and a
    reader's progress."""
    console, drill, round, napkin, progress, instruments = (
        "window.minillmConsole = { linkIncidents, mountConsole, mountIncident };",
        "window.minillmDrill = { mountDrillPage };",
        "window.minillmRound = { mountRoundPage, tellSittings };",
        "window.minillmNapkin = { mountNapkin };",
        "window.minillmProgress = { mountProgress, noteBets };",
        "window.minillmInstruments = { mountInstruments };",
    )
    (folder / "console.js").write_text(bundle.in_page(console, *bundle.CONSOLE_PAGE), encoding="utf-8")
    (folder / "console.css").write_text(bundle.styles("console"), encoding="utf-8")
    (folder / "drill_view.js").write_text(bundle.in_page(drill, *bundle.DRILL_PAGE), encoding="utf-8")
    (folder / "round_view.js").write_text(bundle.in_page(round, *bundle.ROUND_PAGE), encoding="utf-8")
    (folder / "napkin_view.js").write_text(bundle.in_page(napkin, *bundle.NAPKIN_PAGE), encoding="utf-8")
    (folder / "progress_view.js").write_text(bundle.in_page(progress, *bundle.PROGRESS_PAGE), encoding="utf-8")
    (folder / "instruments.js").write_text(bundle.in_page(instruments, *bundle.INSTRUMENTS), encoding="utf-8")
    (folder / "drill_view.css").write_text(bundle.styles("drill"), encoding="utf-8")


def write_frames(folder: Path) -> None:
    """A script for each recorded explorer: a page that was opened as a file may load scripts, but nothing else."""
    for recorded in RECORDED.glob("[0-9]*/*.json.gz"):
        script = folder / recorded.parent.name / f"{recorded.name.partition('.')[0]}.js"
        script.parent.mkdir(parents=True, exist_ok=True)
        packed = b64encode(recorded.read_bytes()).decode()
        script.write_text(f'minillm.recorded("{script.parent.name}/{script.stem}", "{packed}")\n', encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m course.site", description="Write the course as a static site.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--serve", action="store_true", help="then serve it on this machine, and open it in a browser")
    parser.add_argument("--url", default="", help="where it will stand: pictures on social cards need a whole address")
    options = parser.parse_args(arguments)
    if options.folder.exists() and any(options.folder.iterdir()) and not (options.folder / "static/site.css").exists():
        parser.error(f"{options.folder} holds something else: it would be overwritten")
    written = write(options.folder, options.url.rstrip("/"))
    if options.serve:
        print(f"{len(written)} pages in {options.folder}")
        serve(options.folder)
    else:
        print(f"{len(written)} pages: python -m course.site {options.folder} --serve opens them")
    return 0


def serve(folder: Path) -> None:
    """On the loopback interface, until Ctrl-C. Pages opened as files have recordings only: no worker starts there."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        print(f"At {address} now; Ctrl-C ends it.", flush=True)
        webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


class QuietHandler(SimpleHTTPRequestHandler):
    """Says nothing of what it serves."""

    def log_message(self, *_: object) -> None: ...


if __name__ == "__main__":
    sys.exit(main())
