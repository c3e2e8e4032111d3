"""A plan as one page that needs nothing else: its figures, and its plot."""

from __future__ import annotations

from collections.abc import Sequence

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>When does a remote cache pay?</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c; }
pre { background: #f5f5f3; padding: .8rem 1rem; white-space: pre-wrap; font-size: 13px; }
svg { max-width: 100%; height: auto; }
</style>
<h1>When does a remote cache pay?</h1>
{% for lines in plans %}<pre>{{ lines | join("\n") }}</pre>
{% endfor %}{{ plot }}
</html>
"""


def document(plans: Sequence[Sequence[str]], plot: str) -> str:
    """Return the page; plot: SVG of ours."""
    from jinja2 import Environment
    from markupsafe import Markup

    return Environment(autoescape=True).from_string(_PAGE).render(plans=plans, plot=Markup(plot)) + "\n"
