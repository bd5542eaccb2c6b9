"""The figures that ``bench fleet`` computes from its engines' passes, compared with plain loops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.bench.fleet_engine import EnginePasses
from speculant_graph.bench.fleet_figures import BIN_S, draft_figures, engines_within, event_figures
from speculant_graph.cli.bench import run
from speculant_graph.errors import ConfigError

EVENT_S, WINDOW_S = 100.0, 3.0
PASS = st.tuples(st.integers(1, 60), st.integers(0, 20), st.integers(0, 2))


def engine(steps: list[tuple[int, int, int]]) -> EnginePasses:
    """Passes that end at the given intervals, in hundredths of a second; the first ends 1 s before the event."""
    found, at_s = EnginePasses(), EVENT_S - 1.0
    for hundredths, num_tokens, failed in steps:
        found.ended_s.append(at_s)
        found.draft_s.append(hundredths / 1e4)
        found.pass_s.append(0.005)
        found.num_drafted.append(0)
        found.num_tokens.append(num_tokens)
        found.failed.append(failed)
        found.asked.append(1)
        at_s += hundredths / 100
    return found


def lacking_s(each: EnginePasses) -> float:
    """Return the time of the last failure in the run of failures after the event with gaps below ``BIN_S``."""
    failures = [ended - EVENT_S for ended, failed in zip(each.ended_s, each.failed, strict=True) if failed]
    until = 0.0
    while later := [at for at in failures if until < at < until + BIN_S]:
        until = max(later)
    return until


def test_drafting_of_all_engines_together() -> None:
    engines = [engine([(4, 8, 0), (6, 24, 2)]), engine([(50, 8, 0), (2, 8, 0)])]
    figures = draft_figures(engines, 8, 6e-4)
    assert (figures["passes"], figures["within_bar"], figures["failed_share"]) == (4, 0.75, 0.25)
    assert figures["tokens_per_pass"] == 48 / 4 / 8
    assert figures["draft_ms_p50"] == pytest.approx(0.5)
    engines[1].asked[0] = 0
    figures = draft_figures(engines, 8, 6e-4)
    assert (figures["passes"], figures["asked_share"], figures["within_bar"]) == (4, 0.75, 1.0)
    assert figures["draft_ms_p50"] == pytest.approx(0.4), "a pass without drafting is none that is drafted soon"


def test_the_most_engines_within_the_bar() -> None:
    results = [
        {"engines": 2 * count, "sidecars": 2, "draft_ms_p99": 0.1 * count, "asked_share": 1.0} for count in (1, 2, 4, 8)
    ]
    results.append({"engines": 64, "sidecars": 2, "draft_ms_p99": 0.0, "asked_share": 0.1})
    assert engines_within(results, "draft_ms_p99", 0.4) == 4
    assert engines_within(results, "draft_ms_p99", 0.05) == 0


@given(engines=st.lists(st.lists(PASS, min_size=1, max_size=40), min_size=1, max_size=3))
def test_what_an_event_did(engines: list[list[tuple[int, int, int]]]) -> None:
    played = [engine(steps) for steps in engines]
    rows = [
        (ended - EVENT_S, tokens, failed > 0)
        for each in played
        for ended, tokens, failed in zip(each.ended_s, each.num_tokens, each.failed, strict=True)
    ]
    before = [tokens for at, tokens, _ in rows if -WINDOW_S <= at < 0]
    after = [(at, tokens, failed) for at, tokens, failed in rows if 0 <= at < WINDOW_S]
    figures = event_figures(played, EVENT_S, WINDOW_S)
    mean = sum(before) / len(before)
    assert figures["tokens_per_pass_before"] == pytest.approx(mean, abs=1e-4)
    assert figures["passes"] == len(after)
    assert figures["drafts_back_s"] == pytest.approx(max(map(lacking_s, played)), abs=1e-4)
    share = sum(failed for _, _, failed in after) / len(after) if after else None
    assert figures["share_without_drafts"] == (None if share is None else pytest.approx(share, abs=1e-5))
    back = None
    for number in range(int(WINDOW_S / BIN_S)):
        part = [tokens for at, tokens, _ in after if number * BIN_S <= at < (number + 1) * BIN_S]
        if part and sum(part) / len(part) >= 0.95 * mean:
            back = (number + 1) * BIN_S
            break
    assert figures["tokens_back_s"] == back


@pytest.mark.parametrize("arguments", [["--sidecars", "1"], ["--engines", "0"], ["--curve", "fast"], ["--time", "0"]])
def test_what_can_not_run_is_refused(arguments: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        run(["fleet", *arguments])
    assert "\n" not in str(raised.value)
