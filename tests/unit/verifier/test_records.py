"""The records of finished requests, compared with the results and with the model."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.client import NullDrafter
from speculant_graph.config import DraftConfig, RecordConfig, VerifierConfig
from speculant_graph.types import Draft, Proposal, SessionOptions
from speculant_verifier.engine import Engine, Request
from speculant_verifier.engine.totals import RollingAcceptance
from speculant_verifier.model import TargetModel
from speculant_verifier.records.database import read_records, replay_of
from speculant_verifier.records.record import RecordIdentity, Trace
from speculant_verifier.rules import teacher_forced
from support.drafters import ScriptedDrafter, knowing, knowing_tree
from support.engines import CONFIG, alone, finish
from support.records import slow_rolling_acceptance
from support.tiny_models import tiny_gpt_oss

PROMPTS = [(1, 2, 3), (4, 5), (9, 8, 7, 6, 5), (11,), (12, 13)]


@pytest.fixture(scope="module")
def target():
    return tiny_gpt_oss()


def recording(target, folder, drafter, *, k=6, rows=3, identity=None, target_cache=0, **record):
    return Engine(
        target,
        drafter,
        VerifierConfig(max_batch_size=rows, target_cache=target_cache),
        DraftConfig(k=k, strategy="tree"),
        record=RecordConfig(folder=folder, **record),
        identity=identity,
    )


def run(engine, requests):
    """Decode requests to the end; return their sequences in order."""
    for request in requests:
        engine.add(request)
    ended = finish(engine)
    engine.close()
    return [ended[request.index].sequence for request in requests]


def recorded(folder, sequences):
    """Return all records, by the caller's request number."""
    numbers = {str(each.session_id): each.request.index for each in sequences}
    return {numbers[each.request_id]: each for each in [*read_records(folder), *replay_of(folder, None, 1_000)]}


def scores(target: TargetModel, token_ids):
    """Return the model's log-probabilities after every token, from one plain pass of transformers."""
    with torch.no_grad():
        return torch.log_softmax(target.model(torch.tensor([token_ids])).logits[0].double(), -1)


def check(record, sequence, target, drafts):
    """Compare a record with the sequence, the model, and the verified drafts."""
    assert (record.prompt, record.output) == (sequence.prompt, sequence.output)
    size = len(record.output)
    columns = (record.drafted, record.sources, record.accepted, record.top_token_ids, record.top_logprobs)
    assert [len(column) for column in columns] == [size] * 5
    assert sum(record.accepted) == sum(sequence.accepted_by_depth)
    assert record.num_passes == sequence.num_steps
    assert record.drafted_share == sum(record.accepted) / size
    num_tried = sum(map(bool, record.drafted))
    assert sequence.num_tried == num_tried
    assert record.acceptance == (sum(record.accepted) / num_tried if num_tried else None)
    logprobs = scores(target, [*record.prompt, *record.output])[len(record.prompt) - 1 :]
    text = [*record.prompt, *record.output]
    starts = set()
    for position in range(size):
        token, drafted = record.output[position], record.drafted[position]
        if record.accepted[position]:
            assert token in drafted
        else:
            starts.add(len(record.prompt) + position + 1)
        if sequence.config.rule == "follow":
            assert record.accepted[position] == (token in drafted)
        assert len(record.sources[position]) == len(drafted)
        top, of_top = record.top_token_ids[position], record.top_logprobs[position]
        assert top == tuple(logprobs[position].topk(len(top)).indices.tolist())
        assert of_top == pytest.approx(logprobs[position, list(top)].tolist(), abs=1e-4)
        assert list(of_top) == sorted(of_top, reverse=True)
        if not sequence.config.temperature:
            assert top[0] == token == int(logprobs[position].argmax())
    # The record lists the drafts' children of the accepted nodes.
    for known, draft in drafts:
        if list(known) != text[: len(known)] or len(known) not in {len(record.prompt), *starts}:
            continue
        node, position = 0, len(known) - len(record.prompt)
        while position < size - 1:  # the last token is the model's own
            children = [j for j in range(len(draft)) if draft.parents[j] == node]
            assert record.drafted[position] == tuple(draft.token_ids[j] for j in children)
            right = [j for j in children if draft.token_ids[j] == record.output[position]]
            if not record.accepted[position]:
                break
            node, position = right[0] + 1, position + 1


@pytest.mark.parametrize("kind", ["chains", "trees"])
@pytest.mark.parametrize("rows", [1, 3])
def test_records_are_what_happened(target, tmp_path, kind, rows):
    config = CONFIG.model_copy(update={"max_tokens": 24})
    references = [[*prompt, *alone(target, prompt, config)] for prompt in PROMPTS]
    script = knowing(references, 0.7, 258) if kind == "chains" else knowing_tree(references, 258)
    drafts = []

    def watched(step):
        drafts.append((tuple(step.token_ids), script(step)))
        return drafts[-1][1]

    engine = recording(target, tmp_path, ScriptedDrafter(watched), rows=rows)
    sequences = run(engine, [
        Request(index, prompt, config, document=f"d{index}") for index, prompt in enumerate(PROMPTS)
    ])  # fmt: skip
    found = recorded(tmp_path, sequences)
    assert found.keys() == set(range(len(PROMPTS)))
    for index, sequence in enumerate(sequences):
        record = found[index]
        assert sum(record.accepted) > 0
        check(record, sequence, target, drafts)
        assert {len(row) for row in record.top_token_ids} == {16}
        assert (record.target, record.tokenizer) == ("tiny-gpt-oss", target.fingerprint.sha256)
        assert (record.strategy, record.rule, record.temperature, record.seed) == ("greedy", "follow", 0.0, 0)
        assert {source for row in record.sources for source in row} == {"greedy"}, "as the draft says of itself"
        assert record.document == f"d{index}"


def test_stop_tokens_and_limits_cut_records_as_they_cut_the_text(target, tmp_path):
    """Outputs end within accepted paths, at their last tokens, and after them."""
    requests, references = [], []
    for index, prompt in enumerate(PROMPTS):
        text = alone(target, prompt, CONFIG)
        references.append([*prompt, *text])
        end = CONFIG.model_copy(update={"end_token_ids": (text[4 + index],), "ignore_end_tokens": False})
        requests.append(Request(2 * index, prompt, end))
        limit = CONFIG.model_copy(update={"max_tokens": 1 + 2 * index})
        requests.append(Request(2 * index + 1, prompt, limit))
    drafter = ScriptedDrafter(knowing(references, 0.9, 258))
    sequences = run(recording(target, tmp_path, drafter), requests)
    found = recorded(tmp_path, sequences)
    assert len(found) == len(requests)
    for request, sequence in zip(requests, sequences, strict=True):
        check(found[request.index], sequence, target, [])
        if request.index % 2 == 0:
            assert sequence.output[-1] in sequence.end_token_ids
    assert any(record.accepted[-1] for record in found.values()), "the cut goes through an accepted path"


@pytest.mark.parametrize(("rule", "temperature"), [("token", 1.0), ("tree-iid", 0.8), ("nasd", 0.0)])
def test_records_under_other_rules(target, tmp_path, rule, temperature):
    config = CONFIG.model_copy(update={"rule": rule, "temperature": temperature, "seed": 3, "max_tokens": 20})
    generator = random.Random(2)

    def script(step):
        token_ids = tuple(generator.randrange(40) for _ in range(step.node_budget))
        return Draft(token_ids, tuple(generator.randint(0, j) for j in range(len(token_ids))))

    sequences = run(recording(target, tmp_path, ScriptedDrafter(script)), [
        Request(index, prompt, config.model_copy(update={"seed": index}))
        for index, prompt in enumerate(PROMPTS)
    ])  # fmt: skip
    found = recorded(tmp_path, sequences)
    for index, sequence in enumerate(sequences):
        check(found[index], sequence, target, [])
        assert (found[index].rule, found[index].seed) == (rule, index)


def test_tokens_from_the_target_cache_have_no_top_tokens(target, tmp_path):
    engine = recording(target, tmp_path, NullDrafter(), rows=1, target_cache=1_000_000)
    first, again = run(engine, [Request(index, (1, 2, 3), CONFIG) for index in range(2)])
    assert first.num_from_target_cache == 0
    assert again.num_from_target_cache == len(again.output) - again.num_steps > 0
    found = recorded(tmp_path, (first, again))
    one, two = found[0], found[1]
    assert one.output == two.output
    assert all(one.top_token_ids)
    assert [len(row) for row in two.top_logprobs].count(0) == again.num_from_target_cache
    assert len(two.drafted) == len(two.accepted) == len(two.top_token_ids) == len(two.output)
    assert two.num_passes == again.num_steps


def test_who_is_recorded_and_as_whose(target, tmp_path):
    identity = RecordIdentity(tenant="house")
    engine = recording(target, tmp_path, ScriptedDrafter(lambda step: Draft()), identity=identity)
    # The scripted drafter accepts no options, so a tenant's session is refused and continues without drafts.
    requests = [
        Request(0, (1, 2), CONFIG),
        Request(1, (1, 2), CONFIG, session=SessionOptions(tenant="acme")),
        Request(2, (1, 2), CONFIG, session=SessionOptions(graph="other")),
        Request(3, (1, 2), CONFIG.model_copy(update={"speculation": "off"})),
        Request(4, (1, 2), CONFIG, wrap_target=teacher_forced((5, 6))),
        Request(5, (), CONFIG),
        Request(6, (1, 2), CONFIG, stop_check=lambda token_ids: 1 // 0),
    ]
    for request in requests:
        engine.add(request)
    gone = engine.add(Request(7, (1, 2), CONFIG.model_copy(update={"max_tokens": 100})))
    engine.step()
    identity.draft_model, identity.adapter = "small", "cafe"  # changed while requests run
    engine.cancel(gone)
    ended = finish(engine)
    engine.close()
    found = recorded(tmp_path, [each.sequence for each in ended.values()])
    assert {index: each.tenant for index, each in found.items()} == {0: "house", 1: "acme", 2: "house"}
    assert {(each.draft_model, each.adapter) for each in found.values()} == {("small", "cafe")}
    assert len({each.reservoir_key for each in found.values()}) == 3


class OfTenants(ScriptedDrafter):
    """A scripted drafter that accepts session options."""

    def open(self, session_id, options=None):
        super().open(session_id)


def outcomes(folder, target, threshold, requests, drafter):
    """Decode requests one by one; return (tenant, acceptance, is_failure) of each, and the sequences."""
    engine = recording(target, folder, drafter, rows=1, threshold=threshold)
    sequences = run(engine, requests)
    found = recorded(folder, sequences)
    return [(found[i].tenant, found[i].acceptance, found[i].is_failure) for i in range(len(requests))], sequences


def test_failures_are_judged_where_drafts_were_tried(target, tmp_path):
    """The threshold is fixed or the tenant's earlier acceptance; a request without drafts is no failure."""
    references = [[*prompt, *alone(target, prompt, CONFIG)] for prompt in PROMPTS]
    script = knowing(references, 0.6, 258)

    def drafter():
        return OfTenants(lambda step: Draft() if step.token_ids[0] == PROMPTS[3][0] else script(step))

    requests = [
        Request(index, prompt, CONFIG, session=SessionOptions(tenant="ab"[index % 2]))
        for index, prompt in enumerate(PROMPTS * 2)
    ]
    found, _ = outcomes(tmp_path / "fixed", target, 0.7, requests, drafter())
    assert all(failed == (share is not None and share < 0.7) for _, share, failed in found)
    assert any(failed for *_, failed in found)
    assert [share for _, share, _ in found].count(None) == 2
    found, sequences = outcomes(tmp_path / "relative", target, "relative", requests, drafter())
    tried: dict[str, list[tuple[int, int]]] = {"a": [], "b": []}
    for (tenant, share, failed), sequence in zip(found, sequences, strict=True):
        before = tried[tenant]
        rolling = sum(right for _, right in before) / sum(count for count, _ in before) if before else None
        assert failed == (share is not None and rolling is not None and share < rolling)
        if share is not None:
            before.append((sequence.num_tried, sum(sequence.accepted_by_depth)))
        assert sequence.rolling_acceptance == (
            sum(right for _, right in before) / sum(count for count, _ in before) if before else None
        )
    assert any(failed for *_, failed in found)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 9))),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_rolling_acceptance_is_that_of_the_latest_requests(requests, window, most_tenants):
    rolling = RollingAcceptance(window, most_tenants)
    seen: list[tuple[str, int, int]] = []
    for tenant, tried, accepted in requests:
        share = rolling.add(tenant, tried, min(tried, accepted))
        seen += [(tenant, tried, min(tried, accepted))] * bool(tried)
        assert share == rolling.of(tenant)
        for each in "abc":
            assert rolling.of(each) == slow_rolling_acceptance(seen, each, window, most_tenants)


def test_confidences_are_the_drafters_own_after_the_node():
    tree = Draft((1, 2, 3), (0, 0, 2), path_probabilities=(0.5, 0.25, 0.125))
    sampled = Draft((4, 6), (0, 1), proposals=(_q({4: 0.75, 9: 0.25}), _q({5: 0.5, 6: 0.5})))
    for draft, path, expected in (
        (tree, (1,), [(0.5, 0.25), (0.5,)]),
        (sampled, (0,), [(0.75,), (0.5,)]),
        (Draft((4,), (0,)), (), [()]),
    ):
        trace = Trace("tree")
        trace.add(draft, path, len(path) + 1)
        assert [*trace.rounded_confidences] == expected


def _q(chances: dict[int, float]) -> Proposal:
    return Proposal(np.array([*chances], np.uint32), np.array([*chances.values()], np.float32))


def test_sources_are_those_of_the_nodes():
    #             0: a=1    1: b=2     2: below b=3   3: below b=4    4: below a=9
    draft = Draft((1, 2, 3, 4, 9), (0, 0, 2, 2, 1), sources=("model", "both", "ngrams", "model", "model"))
    trace = Trace("tree")
    trace.add(draft, (1, 3), 3)
    trace.add_top(np.zeros((3, 4)))
    trace.add(dataclasses.replace(draft, strategy="specexec", sources=()), (), 1)
    trace.add_top(None)
    assert trace.drafted == [(1, 2), (3, 4), (), (1, 2)]
    assert trace.sources == [("model", "both"), ("ngrams", "model"), (), ("specexec", "specexec")]
    assert trace.accepted == [True, True, False, False]
    assert trace.top_token_ids == ((0, 0), (0, 0), (0, 0), ())
    assert trace.strategy == "specexec"
