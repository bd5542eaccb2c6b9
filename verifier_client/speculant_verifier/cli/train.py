"""``speculant train``: trains an adapter of the draft model on recorded requests, and publishes it if it is better."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from speculant_graph.config import DraftModelConfig, TrainConfig
from speculant_graph.errors import ConfigError
from speculant_graph.file_names import json_text
from speculant_graph.files import workspace
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import ReportingSettings, load_settings
from speculant_graph.terminal import printable
from speculant_verifier.training.publishing import publish, require_publishable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from speculant_verifier.records.record import RequestRecord
    from speculant_verifier.training.gate import Verdict
    from speculant_verifier.training.trainer import TrainingResult


_SHOWN = ("num_steps", "num_tokens", "trainable_share", "duration_s")
"""Names of the training result's fields that --json-output prints unchanged."""


class TrainSettings(ReportingSettings):
    """Train a LoRA adapter that makes a draft model imitate the target's output in recorded requests.

    Three tenths of the documents are held out from training. The adapter is written if it gives more tokens per target
    pass than the previous adapter on requests of the held-out documents. Ctrl-C ends the training; the best adapter so
    far is then compared with the previous adapter. The exit status is 1 if no adapter was written.
    """

    records: Path
    """Folder of recorded requests: the folder that --record.folder named when the requests were recorded."""
    output: Path | None = None
    """NAME under which the adapter is published, required for training. NAME becomes a link to the newest version in
    the folder NAME.d, which also contains the previous version."""
    continue_from: Path | None = None
    """Adapter from which training continues, with the same rank: a folder, or a name in draft_model.adapters. By
    default, training begins with an adapter that changes nothing."""
    evaluate: Path | None = None
    """Instead of training, compare this adapter with draft_model.adapter, or with the base model if that is not set.
    The comparison uses records of documents on which this adapter was not trained. The exit status is 1 if this adapter
    is not better, so that it would not be published."""
    tenant: str | None = None
    """Train only on the text of this tenant; required if the records have several tenants."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """The draft model, and the adapter that the new one must beat. By default, the adapter to beat is the one published
    under --output, or else the one in --continue-from."""
    train: TrainConfig = TrainConfig()
    """Training settings."""


def run(arguments: Sequence[str]) -> int:
    """Train and publish an adapter; print figures to standard output, and progress to standard error."""
    settings = load_settings(TrainSettings, "train", arguments)
    draft_model = settings.draft_model
    if not draft_model.name:
        raise ConfigError("there is no draft model to train; name one with --draft-model")
    log_to_stderr("INFO")
    if settings.evaluate is not None and settings.output is not None:
        raise ConfigError("--evaluate publishes nothing", fix="leave --output out")
    if settings.evaluate is not None:
        return _evaluate(settings, settings.evaluate)
    if settings.output is None:
        raise ConfigError("there is no name for the adapter; give one with --output")
    require_publishable(settings.output)
    records = _read(settings)  # before the slow imports
    from speculant_verifier.cli.console import waiting_for
    from speculant_verifier.model.progress import quiet_transformers
    from speculant_verifier.training.examples import of_tokenizer, split

    with waiting_for(f"loading {printable(draft_model.name)}", "auto"):
        from speculant_verifier.draft_model.adapter_files import add_to_note, read_adapter, require_base
        from speculant_verifier.draft_model.factory import load_base
        from speculant_verifier.training.gate import judge, shortage
        from speculant_verifier.training.trainer import train_adapter

        quiet_transformers()
        model, tokenizer = load_base(draft_model)
    start = None
    if settings.continue_from is not None:
        start = read_adapter(draft_model.adapters.get(str(settings.continue_from), settings.continue_from))
        require_base(start, draft_model.name)
    present = _present(draft_model, settings.output, model) or (None if start is None else start.folder)
    records = of_tokenizer(records, tokenizer.sha256, model.config.get_text_config().vocab_size)
    if too_few := shortage(split(records)[1]):  # checked before the training
        raise ConfigError(f"{too_few}, of {len(records)} requests in all; record more, of more documents")
    if start is not None and "rank" in settings.train.model_fields_set and settings.train.rank != start.config.r:
        raise ConfigError(
            f"the adapter of --continue-from has rank {start.config.r}", fix="leave {field} out", field="train.rank"
        )
    if start is not None and start.tenants is not None and records[0].tenant not in start.tenants:
        raise ConfigError("--continue-from names an adapter that learned another tenant's text; leave it out")
    verdict, digest = None, None
    with workspace(settings.output) as folder:
        result = train_adapter(
            model,
            draft_model.name,
            records,
            settings.train,
            folder,
            start=start,
            report=_report,
        )
        del model  # the gate loads it again
        if result.candidate is not None:
            try:
                _report("the training has ended; Ctrl-C now discards the adapter")
                verdict = judge(result.candidate, present, draft_model, result.held_out, _report)
            except (KeyboardInterrupt, SystemExit):
                sys.stderr.write("speculant: train: stopped before the gate's end; no adapter was published\n")
                raise
            if verdict.is_better:
                # An adapter that continues another was also trained on the other's documents.
                documents = result.documents.union(() if start is None else start.note.get("documents", ()))
                note = {"gate": verdict.figures(), "tenants": [records[0].tenant], "documents": sorted(documents)}
                add_to_note(result.candidate, note)
                digest = read_adapter(publish(result.candidate, settings.output)).digest
    _print(result, verdict, settings, digest)
    if result.end is not None:
        raise result.end
    return 0 if digest else 1


def _evaluate(settings: TrainSettings, adapter: Path) -> int:
    """Compare an adapter with the current adapter on unseen documents; return 1 if it is no better."""
    records, draft_model = _read(settings), settings.draft_model  # before the slow imports
    from speculant_verifier.cli.console import waiting_for
    from speculant_verifier.model.progress import quiet_transformers

    with waiting_for(f"loading {printable(draft_model.name)}", "auto"):
        from speculant_verifier.draft_model.adapter_files import read_adapter
        from speculant_verifier.draft_model.factory import load_base
        from speculant_verifier.training.examples import documents_of, of_tokenizer, split
        from speculant_verifier.training.gate import judge, shortage

        quiet_transformers()
        info = read_adapter(draft_model.adapters.get(str(adapter), adapter))
        model, tokenizer = load_base(draft_model)
        present = _present(draft_model, None, model)
        records = of_tokenizer(records, tokenizer.sha256, model.config.get_text_config().vocab_size)
        del model  # the gate loads it again
        learned = info.note.get("documents")
        if learned is None:  # made by another program, perhaps from these records
            records = split(records)[1]
        else:
            records = [each for each, key in zip(records, documents_of(records), strict=True) if key not in learned]
        if too_few := shortage(records):
            raise ConfigError(f"{too_few}; record more")
    verdict = judge(info.folder, present, draft_model, records, _report)
    if settings.json_output:
        sys.stdout.write(json_text({"digest": info.digest, "gate": verdict.figures()}) + "\n")
    else:
        _print_gate(verdict)
        sys.stdout.write(f"{'better' if verdict.is_better else 'not better'}: {verdict.reason}\n")
    return 0 if verdict.is_better else 1


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _print_gate(verdict: Verdict) -> None:
    """Print the figures of the comparison between two adapters as text."""
    kinds = ("requests", verdict.everything), ("failures", verdict.failures), ("other requests", verdict.replay)
    for name, compared in kinds:
        if compared is not None:
            low, high = compared.interval_after_minus_before
            sys.stdout.write(
                f"gate, {compared.num_requests} {name} of {compared.num_documents} documents: tokens per pass "
                f"{compared.tokens_per_pass_before:.3f} -> {compared.tokens_per_pass_after:.3f} "
                f"({low:+.3f} to {high:+.3f}), tokens/s {compared.tokens_per_s_before:.1f} -> "
                f"{compared.tokens_per_s_after:.1f}\n"
            )


def _present(draft_model: DraftModelConfig, output: Path | None, model: PreTrainedModel) -> Path | None:
    """Return the adapter that a new one must beat; None for the base model.

    Raises:
        ConfigError: the adapter in the settings does not belong to this model.
    """
    from speculant_verifier.draft_model.adapter_files import with_adapter

    if draft_model.adapter:
        named = draft_model.adapters.get(draft_model.adapter, Path(draft_model.adapter))
        return with_adapter(model, draft_model.name, named)[1].folder
    if output is None or not output.exists():
        return None
    try:
        return with_adapter(model, draft_model.name, output)[1].folder
    except ConfigError as error:
        logger.warning("the published adapter can't be used, so a new one must be better than none: {}", error)
        return None


def _read(settings: TrainSettings) -> list[RequestRecord]:
    """Read one tenant's recorded requests: failures (drafts rarely accepted), and other requests for replay.

    Raises:
        ConfigError: there are no records, or they belong to several tenants. An adapter learns from one tenant only,
            because weights reveal training text.
    """
    from speculant_verifier.records.database import read_records, replay_of

    replay = replay_of(settings.records, settings.tenant, sys.maxsize)
    records = read_records(settings.records, tenant=settings.tenant) + replay
    if not records:
        whose = "" if settings.tenant is None else f" of tenant '{settings.tenant}'"
        fix = "name the folder of --record (--records)" if settings.tenant is None else "name another, or record first"
        raise ConfigError(f"there are no records{whose} in {settings.records}", fix=fix)
    if (num_tenants := len({record.tenant for record in records})) > 1:
        raise ConfigError(f"the records belong to {num_tenants} tenants; name one with --tenant")
    return records


def _print(result: TrainingResult, verdict: Verdict | None, settings: TrainSettings, digest: str | None) -> None:
    """Print the results of the training and of the comparison with the previous adapter, as text or JSON."""
    if settings.json_output:
        shown: dict[str, Any] = {name: getattr(result, name) for name in _SHOWN} | {
            "adapter": digest and str(settings.output),
            "digest": digest,
            "num_held_out": len(result.held_out),
            "before": asdict(result.before),
            "after": asdict(result.after),
            "gate": None if verdict is None else verdict.figures(),
        }
        sys.stdout.write(json_text(shown) + "\n")
        return
    sys.stdout.write(
        f"held out: loss {result.before.loss:.3f} -> {result.after.loss:.3f}, "
        f"acceptance {result.before.acceptance:.1%} -> {result.after.acceptance:.1%}\n"
    )
    reason = "no state was better than the initial one" if verdict is None else verdict.reason
    if verdict is not None:
        _print_gate(verdict)
    if digest:
        sys.stdout.write(f"adapter {printable(str(settings.output))}, sha256 {digest}\n")
    else:
        sys.stdout.write(f"nothing was written: {reason}; record more, or train longer\n")
