"""What mkdocs.yml can't say: the pages outside of ``docs/``, the examples, and the reference of the Python API.

A page keeps its path in the repository, without ``docs/``, so its links need to change only where they cross that
folder's border. The reference is written from :data:`REFERENCE`; mkdocstrings reads the docstrings and imports nothing.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

REFERENCE = {
    "Decode": (
        "speculant_graph.SpeculativeDecoder", "speculant_graph.GenerationResult", "speculant_graph.StepEvent",
        "speculant_graph.TokenLogprobs", "speculant_graph.PhaseTimes", "speculant_graph.TargetModel",
        "speculant_graph.speculant_generate",
    ),
    "Build and read graphs": (
        "speculant_graph.GraphBuilder", "speculant_graph.graph.build.builder.build_from_token_ids",
        "speculant_graph.NgramGraph", "speculant_graph.graph.metadata.GraphMetadata",
        "speculant_graph.graph.network.NgramDiGraph", "speculant_graph.corpus.tokenize.CorpusTokenizer",
    ),
    "Draft": (
        "speculant_graph.DraftGenerator", "speculant_graph.SessionDrafter", "speculant_graph.SequenceStep",
        "speculant_graph.DraftRequest", "speculant_graph.types.SessionOptions", "speculant_graph.types.DraftOptions",
        "speculant_graph.Draft", "speculant_graph.Proposal",
        "speculant_graph.Feedback", "speculant_graph.LearnedStore", "speculant_graph.Drafter",
        "speculant_graph.LocalDrafter", "speculant_graph.NullDrafter", "speculant_graph.strategies",
    ),
    "Call a sidecar": (
        "speculant_graph.DrafterClient", "speculant_graph.AsyncDrafterClient", "speculant_graph.client.client_of",
    ),
    "Adapt an engine": (
        "speculant_graph.engines.factory", "speculant_graph.engines.engine_sessions",
        "speculant_graph.engines.llama_cpp", "speculant_graph.engines.vllm",
    ),
    "Price a pass": (
        "speculant_graph.CostCurve", "speculant_graph.CostTable", "speculant_graph.load_or_measure",
    ),
    "Record requests": (
        "speculant_graph.RequestRecord", "speculant_graph.read_records", "speculant_graph.replay_of",
    ),
    "NASD by its own names": (
        "speculant_graph.ngram_assisted_speculative_generate", "speculant_graph.INgramStorage",
        "speculant_graph.NGramStorage", "speculant_graph.OneLevelNGramStorage", "speculant_graph.GreedyProcessor",
        "speculant_graph.MultinomialProcessor",
    ),
    "Settings": (
        "speculant_graph.GraphConfig", "speculant_graph.DraftConfig", "speculant_graph.DraftModelConfig",
        "speculant_graph.FoldConfig", "speculant_graph.GenerationConfig", "speculant_graph.VerifierConfig",
        "speculant_graph.ClientConfig", "speculant_graph.ServerConfig", "speculant_graph.ServiceConfig",
        "speculant_graph.AccessConfig", "speculant_graph.RecordConfig",
    ),
    "Errors": ("speculant_graph.errors",),
}  # fmt: skip
"""Title of a page -> the names and modules on it; all that the package exports, and what pages import besides."""

_OUTSIDE = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "deploy/README.md")
_ICON = "shared/speculant_graph/view/page/icon.svg"
_SAVED_AS = re.compile(r"^( *```\w+) ([\w.-]+)$", re.MULTILINE)  # a fence that names the file to save its block as
_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):(?=<code)")


def _place(path: str) -> str:
    """Return the site's name of a file of the repository."""
    if path == "README.md":
        return "index.md"
    return re.sub(r"\.py$", ".md", path.removeprefix("docs/"))


def _example(code: Path) -> tuple[str, str]:
    """Return an example's docstring, as prose, and the program below it."""
    _, about, program = code.read_text(encoding="utf-8").split('"""', 2)
    return about.replace("``", "`"), program.lstrip()


def _reference(title: str) -> str:
    return f"reference/{title.lower().replace(' ', '-')}.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the reference into the navigation."""
    for section in config.nav or ():
        if "Reference" in section:
            section["Reference"] = [{title: _reference(title)} for title in REFERENCE]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside of ``docs/``, the examples with their code, and the reference."""
    for path in (*_OUTSIDE, "examples/README.md"):
        files.append(File.generated(config, _place(path), abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "site/icon.svg", abs_src_path=str(ROOT / _ICON)))
    for code in sorted((ROOT / "examples").glob("*.py")):
        about, program = _example(code)
        content = f"# {code.name}\n\n{about}\n\n```python\n{program}```\n"
        files.append(File.generated(config, f"examples/{code.stem}.md", content=content))
    for title, names in REFERENCE.items():
        content = f"# {title}\n\n" + "".join(f"::: {name}\n\n" for name in names)
        files.append(File.generated(config, _reference(title), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to pages, and the file name of a block into its title."""
    path = page.file.src_uri
    if page.file.generated_by is None:
        path = f"docs/{path}"
    elif path == "index.md":
        path = "README.md"

    def moved(link: re.Match[str]) -> str:
        target, hash_sign, anchor = link[1].partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if not target or "://" in target or not (ROOT / found).is_file():
            return link[0]
        return f"]({posixpath.relpath(_place(found), posixpath.dirname(_place(path)))}{hash_sign}{anchor})"

    with_titles = _SAVED_AS.sub(r'\1 title="\2"', markdown)
    return re.sub(r"\]\(([^)\s]+)\)", moved, with_titles)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leave the names of roles out of docstrings: the code that follows them says enough."""
    return _ROLE.sub("", html)
