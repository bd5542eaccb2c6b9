"""The explorer's page as one self-contained file, with the answer to one question."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files

_MODULES = ("words", "api", "matches", "places", "successors", "tree", "main")
"""JavaScript modules of the page, each after the modules that it imports."""
_IMPORT = re.compile(r'^import (\{.*?\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:const|function|class) (\w+))", re.MULTILINE)


def render_snapshot(listed: dict[str, object], answer: dict[str, object], name: str) -> str:
    """Return the page.

    The page loads no other files, and its security policy forbids any loading. Text from the graph is embedded as data,
    never as markup.

    Args:
        listed: the page's initial data, from :func:`~speculant_graph.view.lookup.listed`.
        answer: the answer to show, from :meth:`~speculant_graph.view.lookup.GraphLookup.answer`.
        name: name of the graph, for the title.
    """
    style, script, icon = _part("page.css"), _script(), _data_url("image/svg+xml", _part("icon.svg"))
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    replacements = {
        "<title>Explorer - speculant</title>": (
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            f"<title>{html.escape(name)} - speculant view</title>"
        ),
        "icon.svg": icon,
        '<link rel="stylesheet" href="page.css">': f"<style>{style}</style>",
        '<script type="module" src="main.js"></script>\n': "",
        "</body>": (
            f'<script type="application/json" id="saved">{_embedded({"list": listed, "answer": answer})}</script>\n'
            f"<script>{script}</script>\n</body>"
        ),
    }
    # Replace all in one pass, so that inserted text is not replaced again.
    return re.sub("|".join(map(re.escape, replacements)), lambda found: replacements[found[0]], _part("index.html"))


def _script() -> str:
    """Return the modules as one script, because pages opened from a file can't import modules."""
    modules = []
    for name in _MODULES:
        source = _IMPORT.sub(r"const \1 = modules.\2;", _part(f"{name}.js"))
        exported = ", ".join(each[1] for each in _EXPORT.findall(source))
        source = _EXPORT.sub(r"\1", source)
        modules.append(f"modules.{name} = (() => {{\n{source}\nreturn {{ {exported} }};\n}})();\n")
    return '"use strict";\n{\nconst modules = {};\n' + "".join(modules) + "}\n"


def _part(name: str) -> str:
    return files("speculant_graph.view").joinpath("page", name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data_url(media_type: str, content: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content.encode()).decode()}"


def _embedded(content: object) -> str:
    """Return JSON for a script element: no character in it can end the element or begin a comment."""
    encoded = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
