"""The explorer's page as one file, with the answer to one question, that needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib.resources import files

_MODULES = ("words", "api", "matches", "places", "successors", "tree", "main")
"""Those of the page's script, each after those that it imports."""
_IMPORT = re.compile(r'^import (\{.*?\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:const|function|class) (\w+))", re.MULTILINE)


def render_snapshot(listed: dict[str, object], answer: dict[str, object], name: str) -> str:
    """Return the page.

    It loads nothing, and its security policy forbids it to; text of the graph is data in it, never markup.

    Args:
        listed: what the page needs, from :func:`~speculant_graph.view.look_up.listed`.
        answer: what it shows, from :meth:`~speculant_graph.view.look_up.GraphLookUp.answer`.
        name: of the graph, for the title.
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
    # In one pass, so that nothing that is filled in is itself replaced.
    return re.sub("|".join(map(re.escape, replacements)), lambda found: replacements[found[0]], _part("index.html"))


def _script() -> str:
    """Return the modules as one script, as pages that were opened from a file must not import any."""
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
    """Return JSON that can stand in a script element: no character of it can end the element or begin a comment."""
    encoded = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
