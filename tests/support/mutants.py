"""Damaged messages, some of them almost valid."""

from __future__ import annotations

import random
from typing import Any

from speculant_graph.rpc.v1 import drafter_pb2 as pb


class Mutants:
    """Generates messages and damages them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, bits: int = 32) -> int:
        """Return a number that is likely to be near a bound."""
        edges = [0, 1, 2, 7, 50, 255, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
        return self._random.choice([*edges, self._random.randrange(300)]) % (1 << bits)

    def numbers(self, size: int, bits: int = 32) -> list[int]:
        """Return ``size`` such numbers, sometimes one more or fewer."""
        size = max(0, size + self._random.choice([0, 0, 0, 0, 0, 1, -1]))
        return [self.number(bits) for _ in range(size)]

    def step(self) -> bytes:
        """Return a DraftRequest with random values; its arrays usually have consistent lengths."""
        choose, size = self._random.choice, self._random.choice([0, 1, 1, 2, 5, 40])
        lengths = [choose([0, 1, 3, 30]) for _ in range(size)]
        rows = [choose([0, 0, 1, 3]) for _ in range(size)]
        width = choose([0, 1, 4])
        request = pb.DraftRequest(
            graph=choose([""] * 9 + ["graph", "x", "\0"]),
            session_ids=[choose([0, 0, self._random.randrange(1, 9)]) for _ in range(size)],
            positions=[choose([0, 0, 1, self.number(64)]) for _ in range(size)],
            context_lengths=lengths,
            context_tokens=[choose([1, 2, self.number()]) for _ in range(sum(lengths))],
            node_budgets=[choose([0, 3, 20, 1_024]) for _ in range(size)],
            seeds=self.numbers(size, 64) if self._random.random() < 0.5 else [],
        )
        if self._random.random() < 0.3:
            request.feedback_draft_ids.extend(self.numbers(size, 64))
            request.feedback_row_counts.extend(rows)
            request.feedback_nodes.extend(self.numbers(sum(rows)))
            request.feedback_width = width
            request.feedback_tokens.extend(self.numbers(sum(rows) * width))
        if self._random.random() < 0.3:
            request.least_path_probabilities.extend(
                choose([0.0, 0.5, 1.0, -1.0, 2.0, float("nan"), float("inf")]) for _ in request.context_lengths
            )
        if self._random.random() < 0.7:
            options = request.options
            options.strategy = self._random.choice([*range(8)] * 2 + [8])
            for name in ("max_depth", "max_branches", "max_candidates"):
                if self._random.random() < 0.3:
                    setattr(options, name, self.number())
            options.coupling = choose([0, 0, 1, 2, 3])
            options.siblings = choose([0, 0, 1, 2, 3])
            options.omit_proposals = self._random.random() < 0.5
        return self.bytes(request.SerializeToString())

    def opening(self) -> bytes:
        """Return an OpenSessionRequest."""
        choose = self._random.choice
        request = pb.OpenSessionRequest(
            session_id=choose([self._random.randrange(9), self.number(64)]),
            graph=choose(["", "graph", "x"]),
            tokenizer_sha256=choose([b"", b"\xab" * 32, b"\xcd" * 32, b"short"]),
            learn=choose([True, False]),
            tenant=choose(["", "a", "ä\0/..", "x" * 3_000]),
        )
        return self.bytes(request.SerializeToString())

    def named(self, message_class: Any) -> bytes:
        """Return a message with a name and a path."""
        choose = self._random.choice
        fields = {field.name for field in message_class.DESCRIPTOR.fields}
        values = {
            "name": choose(["", "graph", "more", "x" * 70, "a/b", "\0"]),
            "path": choose(["", "graph.pkl", "/etc/passwd", "../x", "drafter.sock", "\0", "x" * 5_000, "."]),
            "tenant": choose(["", "a", "ä\0/..", "x" * 3_000]),
        }
        request = message_class(**{name: value for name, value in values.items() if name in fields})
        return self.bytes(request.SerializeToString())

    def bytes(self, payload: bytes) -> bytes:
        """Damage the serialized bytes of half of the messages."""
        mutated, generator = bytearray(payload), self._random
        while generator.random() < 0.2:
            place = generator.randrange(len(mutated) + 1)
            match generator.randrange(5):
                case 0 if mutated:
                    mutated[place % len(mutated)] ^= 1 << generator.randrange(8)
                case 1:
                    del mutated[place:]
                case 2:
                    mutated[place:place] = generator.randbytes(generator.randrange(1, 9))
                case 3:
                    end = generator.randrange(place, len(mutated) + 1)
                    mutated[place:place] = mutated[place:end]
                case _:
                    del mutated[place : place + generator.randrange(1, 9)]
        return bytes(mutated)


def framed(payload: bytes) -> bytes:
    """Return bytes with their length in front, as in protobuf."""
    length, size = bytearray(), len(payload)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([*length, size]) + payload
