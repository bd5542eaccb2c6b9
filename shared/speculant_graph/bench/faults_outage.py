"""What a drafter that is stopped, or killed and started again, costs the steps of a client."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from speculant_graph.bench.faults_clients import (
    CLIENTS,
    ClientName,
    DrivenClient,
    driven_client,
    quantiles,
    run_in_loop,
    steps_of,
)
from speculant_graph.bench.faults_server import FaultyServer, Stage, running_drafter
from speculant_graph.errors import SpeculantError

STOP_DEADLINE_MS = 5.0
"""What a step of the stopped drafter's client may wait."""

_BATCH = 4
_PROMPT_TOKENS = 200
_TOKENS_PER_STEP = 4
_MODEL_S = 0.002
"""Between two steps, in place of the model's pass."""
_MOST_STEPS_BEFORE_OPEN = 50
_STEPS_COMPARED = 20
_GIVE_UP_S = 60.0


def measure_stop(stage: Stage, repeats: int, num_open_steps: int) -> dict[str, Any]:
    """Stop a drafter under each client and let it go on; return the figures.

    Args:
        stage: graph and texts.
        repeats: how often, for each client.
        num_open_steps: steps that are timed while the breaker is open, of each repeat.
    """
    figures: dict[str, Any] = {}
    with running_drafter(stage) as server:
        for name in CLIENTS:
            figures[name] = run_in_loop(_stop(stage, server, name, repeats, num_open_steps))
    return {"deadline_ms": STOP_DEADLINE_MS, "repeats": repeats, **figures}


async def _stop(stage: Stage, server: FaultyServer, name: ClientName, repeats: int, num_open_steps: int) -> Any:
    before_open_s: list[float] = []
    open_s: list[float] = []
    back_ms: list[float] = []
    num_different = 0
    steps = steps_of(stage.texts[:_BATCH], _PROMPT_TOKENS)
    async with driven_client(name, server.address, deadline_ms=STOP_DEADLINE_MS) as client:
        for repeat in range(repeats):
            stage.tell(f"stop: {name} client", repeat, repeats)
            before = await client.drafted(steps)
            server.pause()
            before_open_s += await _steps_until_open(client, steps)
            for _ in range(num_open_steps):
                drafts, took_s = await client.timed(steps)
                open_s.append(took_s)
                num_different += any(drafts)  # nobody can have drafted
                await client.pause(_MODEL_S)
            server.go_on()
            started_s = time.perf_counter()
            after = await client.drafted(steps)
            back_ms.append((time.perf_counter() - started_s) * 1e3)
            num_different += after != before
    return {
        "steps_before_open": len(before_open_s) / repeats,
        "before_open_ms": quantiles(before_open_s, 1e-3),
        "open_steps": len(open_s),
        "open_us": quantiles(open_s, 1e-6),
        "back_ms": [round(each, 1) for each in back_ms],
        "different": num_different,
    }


async def _steps_until_open(client: DrivenClient, steps: Any) -> list[float]:
    """Make steps until one is not even sent; return the seconds of those that were."""
    times: list[float] = []
    skipped = client.statistics.skipped_steps
    while len(times) < _MOST_STEPS_BEFORE_OPEN:
        _, took_s = await client.timed(steps)
        if client.statistics.skipped_steps > skipped:
            break
        times.append(took_s)
        await client.pause(_MODEL_S)
    return times


def measure_kill(stage: Stage, repeats: int) -> dict[str, Any]:
    """Kill a drafter under each client and start it again; return the figures.

    Args:
        stage: graph and texts.
        repeats: how often, for each client.
    """
    figures: dict[str, Any] = {}
    with running_drafter(stage) as server:
        for name in CLIENTS:
            figures[name] = run_in_loop(_kill(stage, server, name, repeats))
    return {"repeats": repeats, "sessions": _BATCH, **figures}


async def _kill(stage: Stage, server: FaultyServer, name: ClientName, repeats: int) -> Any:
    meanwhile_s: list[float] = []
    back_ms: list[float] = []
    num_raised = num_different = 0
    texts = stage.texts[:_BATCH]
    async with driven_client(name, server.address) as client:
        num_tokens = _PROMPT_TOKENS
        for repeat in range(repeats):
            stage.tell(f"kill: {name} client", repeat, repeats)
            await client.drafted(steps_of(texts, num_tokens))
            server.kill()
            server.start()
            steps = steps_of(texts, num_tokens)
            with ThreadPoolExecutor(1) as pool:  # as the client goes on meanwhile
                serving = pool.submit(server.await_serving)
                first_s: float | None = None
                while first_s is None:
                    try:
                        drafts, took_s = await client.timed(steps)
                    except Exception:
                        num_raised += 1
                    else:
                        meanwhile_s.append(took_s)
                        first_s = time.perf_counter() if all(drafts) else None
                    _require_hope(serving, client)
                    await client.pause(_MODEL_S)
                back_ms.append((first_s - serving.result()) * 1e3)
            async with driven_client(name, server.address) as undisturbed:
                for _ in range(_STEPS_COMPARED):
                    steps = steps_of(texts, num_tokens)
                    num_different += await client.drafted(steps) != await undisturbed.drafted(steps)
                    num_tokens += _TOKENS_PER_STEP
        reopened = client.statistics.reopened_sessions
    return {
        "steps_meanwhile": len(meanwhile_s),
        "raised": num_raised,
        "meanwhile_ms": quantiles(meanwhile_s, 1e-3),
        "back_ms": [round(each, 1) for each in back_ms],
        "reopened": reopened,
        "compared": repeats * _STEPS_COMPARED,
        "different": num_different,
    }


def _require_hope(serving: Future[float], client: DrivenClient) -> None:
    """Raise if the drafter did not start, or serves for long without being asked."""
    if serving.done() and time.perf_counter() - serving.result() > _GIVE_UP_S:
        raise SpeculantError(f"no drafts after a restart: {client.statistics.last_failure}; run it again")
