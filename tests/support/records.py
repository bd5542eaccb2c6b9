"""Records of requests for tests."""

from __future__ import annotations

from speculant_verifier.records.record import RequestRecord


def record_of(number: int = 0, tenant: str = "", *, key: float | None = None, num_tokens: int = 3) -> RequestRecord:
    """Return the record of a failure or, with a reservoir key, of another request.

    ``number`` is its time and its request id.
    """
    return RequestRecord(
        request_id=str(number),
        time_s=float(number),
        tenant=tenant,
        target="model",
        tokenizer="ab" * 32,
        draft_model="",
        adapter="",
        strategy="tree",
        rule="follow",
        temperature=0.5,
        seed=2**63 - 1,
        prompt=(1, 2),
        output=(7,) * num_tokens,
        drafted=((7, 8),) * num_tokens,
        sources=(("ngrams", "tree"),) * num_tokens,
        confidences=((0.5, 0.25),) * num_tokens,
        accepted=(True,) * num_tokens,
        top_token_ids=((7, 2**31),) * num_tokens,
        top_logprobs=((-0.25, -12.34567),) * num_tokens,
        num_passes=1,
        pass_s=0.01,
        is_failure=key is None,
        reservoir_key=0.5 if key is None else key,
    )


def slow_rolling_acceptance(
    requests: list[tuple[str, int, int]], tenant: str, window: int, most_tenants: int
) -> float | None:
    """Return the accepted share of a tenant's latest requests, computed from the full list of requests.

    Args:
        requests: all requests so far, in order: tenant, tried positions, accepted positions.
        tenant: the tenant.
        window: number of its latest requests that count.
        most_tenants: number of tenants that are remembered; the least recently active tenant is forgotten first,
            with all its requests.
    """
    known: list[str] = []  # least recently active first
    counted: dict[str, list[tuple[int, int]]] = {}
    for name, tried, accepted in requests:
        known = [*(each for each in known if each != name), name]
        if len(known) > most_tenants:
            counted.pop(known.pop(0))
        counted.setdefault(name, []).append((tried, accepted))
    latest = counted.get(tenant, [])[-window:]
    return sum(accepted for _, accepted in latest) / sum(tried for tried, _ in latest) if latest else None
