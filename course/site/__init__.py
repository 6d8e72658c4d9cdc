"""The course as a static site: the same notebooks, guides and formulas, in a browser, with nothing to install.

pages.py        a notebook or a Markdown page as HTML: bets, outcomes, explorers and pictures marked for the scripts
calculator.py   the simulator's prices as coefficients, so that the page computes what minillm computes
search.py       what the search box looks through: sections of the written pages
rounds.py   napkins.py      design rounds and dated sums as data
templates/      Jinja2
static/         styles, and plain JavaScript: a module for each kind of page, and those that pages share
__main__.py     python -m course.site build/site

Pages are made by nbconvert's filters and Jinja2, which come with JupyterLab: one more tool such as MyST or Quarto would
have its own Markdown, and lessons would look different there.
"""
