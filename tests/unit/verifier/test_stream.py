from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from speculant_verifier.stream import TextStream
from support.tiny_models import byte_tokenizer

TOKENIZER = byte_tokenizer()


def decode(token_ids):
    return TOKENIZER.decode(list(token_ids), skip_special_tokens=False)


@given(st.text(max_size=30), st.lists(st.integers(1, 5), max_size=60))
def test_pieces_make_up_the_text_and_no_piece_is_half_a_character(text, sizes):
    token_ids = TOKENIZER.encode(text)
    stream, pieces, start = TextStream(decode), [], 0
    for size in sizes:
        piece = stream.push(token_ids[start : start + size])
        if "\ufffd" not in text:
            assert "\ufffd" not in piece
        pieces.append(piece)
        start += size
    pieces.append(stream.push(token_ids[start:], final=True))
    assert "".join(pieces) == decode(token_ids)


def test_a_broken_character_at_the_end_is_shown_when_it_is_final():
    token_ids = TOKENIZER.encode("ä")
    stream = TextStream(decode)
    assert stream.push(token_ids[:1]) == ""
    assert stream.push([], final=True) == "\ufffd"


def test_spaces_that_depend_on_the_token_before_survive_empty_steps():
    """Decoders of the SentencePiece kind drop the space of the first token they are given."""
    words = ["one", "two", "three"]
    stream = TextStream(lambda token_ids: " ".join(words[token] for token in token_ids))
    pieces = [stream.push([]), stream.push([0]), stream.push([]), stream.push([1]), stream.push([]), stream.push([2])]
    assert "".join(pieces) + stream.push([], final=True) == "one two three"
