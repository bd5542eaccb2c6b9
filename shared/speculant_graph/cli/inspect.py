"""``speculant inspect``: shows a graph's content, its draft after a text, and its coverage of a text."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.config import DraftConfig, GraphConfig, NgramDraftConfig
from speculant_graph.errors import ConfigError, TokenizerMismatchError
from speculant_graph.file_names import json_text
from speculant_graph.settings import ReportingSettings, load_settings
from speculant_graph.terminal import checked_prompt, counted, left_out_of, printable

if TYPE_CHECKING:
    from speculant_graph.corpus.file_patterns import ListedFile
    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.ngrams import NgramGraph


_SHOWN_FILES = 3


class InspectSettings(ReportingSettings):
    """Show a graph file's content, drafts and coverage of a text; or show, export or remove a tenant's learned text."""

    path: CliPositionalArg[Path | None] = None
    """Graph file."""
    learned: Path | None = None
    """Show a tenant's learned text from this folder, instead of a graph file. A sidecar keeps learned text in one
    folder per graph."""
    tenant: str = ""
    """Name of the tenant whose text --learned shows."""
    export: Path | None = None
    """With --learned, write all of the tenant's learned text to this file, as one graph."""
    forget: bool = False
    """With --learned, remove all of the tenant's learned text, after an --export. No sidecar may use the folder."""
    prompt: str | None = None
    """Show the draft after this text, and the known next tokens at every n-gram order."""
    coverage: Path | None = None
    """Show how much of this file's text the graph knows; the file can have any corpus format."""
    places: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Maximum number of places to show where the prompt's longest known suffix occurs in the corpus files."""
    top: Annotated[int, Field(ge=0, le=1_000)] = 5
    """Number of n-grams to show for each length, and of successors for each context."""
    verify: bool = False
    """Check every array of the graph file against its checksum, and check that the arrays are consistent."""
    graph: GraphConfig = GraphConfig()
    """Settings for reading the --coverage text, and the new location of the graph's tokenizer if it has moved since the
    build. Special tokens in the text are always encoded as in the graph's corpus."""
    draft: NgramDraftConfig = NgramDraftConfig()
    """Drafting options for the draft that follows the prompt."""


def run(arguments: Sequence[str]) -> int:
    """Print the graph's description and, if requested, drafts and coverage."""
    settings = load_settings(InspectSettings, "inspect", arguments)
    if settings.learned is not None:
        if settings.path is not None:
            raise ConfigError("a graph file and --learned exclude each other", fix="leave one out", field="path")
        return _inspect_learned(settings, settings.learned)
    for name in ("tenant", "export", "forget"):
        if name in settings.model_fields_set:
            raise ConfigError(f"--{name} needs the folder of learned text", fix="name it by --learned", field=name)
    if settings.path is None:
        raise ConfigError("there is nothing to inspect", fix="name a graph file, or --learned", field="path")
    prompt = None if settings.prompt is None else checked_prompt(settings.prompt)
    if settings.places and not prompt:
        raise ConfigError("--places needs a text to search for", fix="give one by --prompt", field="places")
    from rich.console import Console

    from speculant_graph.corpus.file_patterns import list_corpus_files
    from speculant_graph.graph.ngrams import NgramGraph
    from speculant_graph.log import log_to_stderr
    from speculant_graph.view.places import locate

    log_to_stderr("INFO")
    is_read = prompt is not None or settings.coverage is not None
    graph = NgramGraph.load(settings.path, verify=is_read, complete=settings.verify)
    files = None if settings.coverage is None else list_corpus_files(settings.coverage)
    tokenizer, problem = _tokenizer(graph, settings.graph, is_needed=is_read)
    report = {
        "path": str(settings.path),
        **graph.metadata.summary(settings.path.stat().st_size),
        "top_ngrams": _frequent(graph, settings.top, tokenizer),
        "verified": settings.verify,
    }
    _show_graph(graph, report, problem)
    if prompt is not None:
        assert tokenizer is not None
        report |= _explain(graph, tokenizer, prompt, settings.draft, settings.top)
        _show_prompt(report)
        if settings.places:
            with Console(stderr=True).status("searching the corpus"):
                report |= locate(graph, tokenizer, report["prompt_token_ids"], settings.places)
            _show_places(report)
    if files is not None:
        assert tokenizer is not None
        report["coverage"] = {"path": str(settings.coverage)} | _cover(graph, tokenizer, files, settings.graph)
        _show_coverage(report["coverage"])
    if settings.json_output:
        sys.stdout.write(json_text(report) + "\n")
    return 0


def _inspect_learned(settings: InspectSettings, folder: Path) -> int:
    from speculant_graph.cli.graphs import summary_of
    from speculant_graph.cli.learned import report_learned, rows_of
    from speculant_graph.draft.learning.forgetting import forget_learned

    if settings.forget and "tenant" not in settings.model_fields_set:
        raise ConfigError("--forget needs a tenant", fix="name it; '' is that of requests without one", field="tenant")
    if settings.forget and settings.export is None:  # works for damaged text, too
        is_gone = forget_learned(folder, settings.tenant)
        _print(f"tenant {settings.tenant!r} in {folder}: {'removed' if is_gone else 'there was no learned text'}")
        if settings.json_output:
            gone = {"learned": str(folder), "tenant": settings.tenant, "forgotten": is_gone}
            sys.stdout.write(json_text(gone) + "\n")
        return 0 if is_gone else 1
    report, exported = report_learned(folder, settings.tenant, settings.export, settings.graph)
    if settings.forget:
        report["forgotten"] = forget_learned(folder, settings.tenant)
    size = f"{counted(report['tokens'], 'token')}, {report['file_bytes'] / 1e6:.1f} MB"
    _print(f"tenant {settings.tenant!r} in {folder}: {size}", style="bold")
    _print_table(rows_of(report))
    for path in report["damaged"]:
        _print(f"{path}: damaged, left out", style="yellow")
    if exported is not None and settings.export is not None:
        _print(summary_of(settings.export, exported), style="green")
    if settings.forget:
        _print("removed", style="green")
    if settings.json_output:
        sys.stdout.write(json_text(report) + "\n")
    return 0


def _tokenizer(graph: NgramGraph, config: GraphConfig, *, is_needed: bool) -> tuple[CorpusTokenizer | None, str]:
    """Return the graph's tokenizer, or None and the reason why it is not available.

    If ``is_needed`` is false, the graph's own tokenizer is not downloaded.
    """
    from speculant_graph.corpus.tokenize import CorpusTokenizer, local_tokenizer

    own_name = graph.metadata.tokenizer.name
    name = config.tokenizer_name if "tokenizer_name" in config.model_fields_set else own_name
    if is_needed or name != own_name:
        hf_token = config.hf_token.get_secret_value() if config.hf_token else None
        tokenizer = CorpusTokenizer.load(name, hf_token, graph.metadata.special_tokens)
        tokenizer.require(graph.metadata.tokenizer)
        return tokenizer, ""
    try:
        return local_tokenizer(graph.metadata.tokenizer), ""
    except (ConfigError, TokenizerMismatchError, ModuleNotFoundError) as error:
        return None, str(error)


def _frequent(graph: NgramGraph, num_top: int, tokenizer: CorpusTokenizer | None) -> list[list[dict[str, Any]]]:
    """Return the most frequent n-grams of every length; without a tokenizer, their texts are None."""
    return [
        [
            {"token_ids": list(ngram), "text": None if tokenizer is None else tokenizer.decode(ngram), "count": count}
            for ngram, count in graph.most_common(num_top, length)
        ]
        for length in range(1, graph.max_order + 2)
    ]


def _explain(
    graph: NgramGraph, tokenizer: CorpusTokenizer, prompt: str, config: DraftConfig, num_top: int
) -> dict[str, Any]:
    """Return the draft after a text and, for every order, the known next tokens after the text's end."""
    from speculant_graph.draft.generator import DraftGenerator

    context = tokenizer.encode_prompt(prompt)
    draft = DraftGenerator(graph, config, tokenizer).generate(context)
    orders = range(graph.max_order, 0, -1)
    return {
        "prompt": prompt,
        "prompt_token_ids": context[-graph.max_order :],
        "draft_token_ids": list(draft.token_ids),
        "draft_text": tokenizer.decode(draft.token_ids),
        "orders": [_explain_order(graph, tokenizer, context, order, num_top) for order in orders],
    }


def _explain_order(
    graph: NgramGraph, tokenizer: CorpusTokenizer, context: Sequence[int], order: int, num_top: int
) -> dict[str, Any]:
    # If the prompt is shorter than the order, there is no context.
    shown = context[-order:] if order <= len(context) else []
    successors = graph.successors(shown)
    total = successors.total
    return {
        "order": order,
        "context_token_ids": list(shown),
        "context": tokenizer.decode(shown),
        "count": total,
        "num_successors": len(successors),
        "successors": [
            {
                "token_id": token_id,
                "text": tokenizer.decode([token_id]),
                "count": count,
                "probability": round(count / max(1, total), 6),
            }
            for token_id, count in successors.most_common(num_top)
        ],
    }


def _show_places(report: dict[str, Any]) -> None:
    """Print where a context occurs in the corpus, and which files could not be searched."""
    from speculant_graph.view.places import STATES

    _print("")
    if not report["places_token_ids"]:
        _print("no suffix of the prompt is in the graph, so there is nothing to search for")
        return
    num_places = len(report["places"])
    found = f"{counted(num_places, 'place')} in the corpus" if num_places else "not found in the corpus files"
    more = "" if report["places_complete"] else "; there may be more"
    _print(f"{report['places_text']!r}, seen {counted(report['places_seen'], 'time')}: {found}{more}", style="green")
    for place in report["places"]:
        page = f"page {place['page']}:" if place["page"] else ""
        _print(f"  {place['file']}:{page}{place['line']}:{place['column']}: {place['text']}")
    unsearched = report["places_unsearched"]
    for file in unsearched[:_SHOWN_FILES]:
        _print(f"  {file['file']}: not searched, {STATES[file['state']]}", style="yellow")
    if len(unsearched) > _SHOWN_FILES:
        _print(f"  and {counted(len(unsearched) - _SHOWN_FILES, 'more file')} not searched", style="yellow")
    if not report["files"]:
        _print("  the graph was built from token ids: there are no files")


def _cover(
    graph: NgramGraph, tokenizer: CorpusTokenizer, files: Sequence[ListedFile], config: GraphConfig
) -> dict[str, Any]:
    """Return how much of a text the graph knows. Document boundaries are treated as in the graph's corpus."""
    from speculant_graph.corpus.stream import write_token_stream
    from speculant_graph.graph.build.count import map_tokens

    config = config.model_copy(update={"document_boundaries": graph.metadata.document_boundaries})
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        stream = write_token_stream(tokenizer, files, Path(folder) / "tokens", config)
        orders = graph.core.count_known(map_tokens(stream.path))[1:]
    num_positions = orders[0][0]
    return {
        "tokens": stream.num_tokens,
        "positions": num_positions,
        "known": _share(sum(longest for *_, longest, _ in orders), num_positions),
        "right": _share(sum(longest_right for *_, longest_right in orders), num_positions),
        "orders": [
            {
                "order": order,
                "positions": positions,
                "known": _share(known, positions),
                "right_of_known": _share(right, known),
                "longest": _share(longest, num_positions),
                "right_of_longest": _share(longest_right, longest),
            }
            for order, (positions, known, right, longest, longest_right) in enumerate(orders, start=1)
        ],
    }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _show_graph(graph: NgramGraph, report: dict[str, Any], tokenizer_problem: str) -> None:
    """Print the graph's content and origin."""
    _print(report["path"], style="bold")
    kept = "all" if report["min_count"] == 1 else f"those seen at least {report['min_count']} times"
    borders = "none across document borders" if report["document_boundaries"] else "also across document borders"
    revision = f", revision {report['tokenizer_revision'][:12]}" if report["tokenizer_revision"] else ""
    corpus = counted(report["files"], "file") if report["files"] else "token ids"
    for name, text in {
        "size": f"{report['file_bytes'] / 1e6:.1f} MB, {counted(report['tokens'], 'token')}, "
        f"{counted(report['nodes'], 'n-gram')}, {report['bytes_per_node']} bytes per n-gram, "
        f"{report['bytes_per_token']} per token",
        "built": f"{report['built_at']} by speculant-graph {report['library_version']} "
        f"in {report['build_seconds']:.1f} s",
        "corpus": f"{corpus} ({report['text_bytes'] / 1e6:.1f} MB), {counted(report['documents'], 'document')}, "
        f"special tokens: {report['special_tokens']}",
        "n-grams": f"{kept}, {borders}",
        "calibration": f"{report['calibration_bytes']:,} bytes",
        "neural model": f"{report['neural_model_bytes'] / 1e6:.1f} MB" if report["neural_model_bytes"] else "none",
        "tokenizer": f"{report['tokenizer']} ({report['vocabulary_size']:,} ids, "
        f"{report['tokenizer_sha256'][:12]}{revision})",
    }.items():
        _print(f"{name:<12} {text}")
    if report["skipped"]:
        _print(f"{left_out_of(graph.metadata)}:", style="yellow")
        for file in graph.metadata.skipped:
            _print(f"  {file}")
    if tokenizer_problem:
        _print(f"no texts, only token ids: {tokenizer_problem}", style="yellow")
    if report["verified"]:
        _print("verified: all arrays have their checksums and fit together", style="green")
    levels = zip(report["nodes_per_level"], [*report["contexts_per_order"], None], strict=True)
    _print_table(
        [
            {"length": length, "n-grams": nodes, "contexts": contexts}
            for length, (nodes, contexts) in enumerate(levels, start=1)
        ]
    )
    _print_table(
        [
            {
                "length": len(ngram["token_ids"]),
                "count": ngram["count"],
                "most_frequent": None if ngram["text"] is None else repr(ngram["text"]),
                "token_ids": " ".join(map(str, ngram["token_ids"])),
            }
            for ngrams in report["top_ngrams"]
            for ngram in ngrams
        ]
    )


def _show_prompt(report: dict[str, Any]) -> None:
    """Print the draft after the prompt, and the known next tokens at each n-gram order."""
    drafted = counted(len(report["draft_token_ids"]), "token")
    _print("")
    _print(f"after {report['prompt']!r} it drafts {drafted}: {report['draft_text']!r}", style="green")
    _print_table(
        [
            {
                "order": order["order"],
                "context": repr(order["context"]) if order["context_token_ids"] else "(longer than the prompt)",
                "seen": order["count"],
                "successors": order["num_successors"],
                "next": "  ".join(f"{each['text']!r} {each['probability']:.1%}" for each in order["successors"]),
            }
            for order in report["orders"]
        ]
    )


def _show_coverage(coverage: dict[str, Any]) -> None:
    """Print how much of a text the graph knows."""
    _print("")
    _print(
        f"{coverage['path']}: {counted(coverage['tokens'], 'token')}; some context is known at "
        f"{coverage['known']:.1%} of the positions, and the longest one's most frequent successor is right at "
        f"{coverage['right']:.1%}"
    )
    _print_table(coverage["orders"])


def _print(line: str, style: str = "") -> None:
    """Print a line. Markup in the line is not interpreted, and control characters are escaped."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text(printable(line), style))


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print an empty line and a table, unless the table has no rows."""
    from rich.console import Console

    from speculant_graph.bench.report import table_of

    if rows:
        _print("")
        Console(highlight=False, markup=False, emoji=False, soft_wrap=True).print(table_of(rows))
