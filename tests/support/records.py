"""Records of requests for tests."""

from __future__ import annotations

from speculant_verifier.records.record import RequestRecord


def record_of(number: int = 0, tenant: str = "", *, key: float | None = None, num_tokens: int = 3) -> RequestRecord:
    """A failure, or with a key a request that was none; the number is its time and its request id."""
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
        accepted=(True,) * num_tokens,
        top_token_ids=((7, 2**31),) * num_tokens,
        top_logprobs=((-0.25, -12.34567),) * num_tokens,
        num_passes=1,
        pass_s=0.01,
        is_failure=key is None,
        reservoir_key=0.5 if key is None else key,
    )
