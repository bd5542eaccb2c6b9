"""Incremental detokenization, and stop strings, which end the output at the token that completes one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_verifier.conversation.text import Detokenizer, end_of
from support.tiny_models import byte_tokenizer

TOKENIZER = byte_tokenizer()
WORDS = ["a", "b", "ab", "aab", "ba", " ", "é", "日", "<|x|>"]
MERGED = [b"a", b"b", b"ab", b"abab", b" a", b"\xe6\x97", b"a\xe6", b"\x97\xa5", b"\xa5b", b"\xe6", b"\xff", b"aaaa"]
"""A vocabulary whose tokens contain several characters, parts of characters, or both."""


def decode_bytes(token_ids):
    return TOKENIZER.decode(list(token_ids), skip_special_tokens=False)


def decode_merged(token_ids):
    return b"".join(MERGED[token] for token in token_ids).decode(errors="replace")


def obvious(decode, token_ids, strings):
    """Decode all tokens after each token and search the text; ignore trailing incomplete characters."""
    for count in range(1, len(token_ids) + 1):
        text = decode(token_ids[:count]).rstrip("\ufffd")
        if places := [text.find(string) for string in strings if string in text]:
            return count, text[: min(places)]
    return None, decode(token_ids)


@st.composite
def outputs(draw):
    if draw(st.booleans()):
        decode, token_ids = decode_bytes, TOKENIZER.encode("".join(draw(st.lists(st.sampled_from(WORDS), max_size=15))))
    else:
        decode, token_ids = decode_merged, draw(st.lists(st.integers(0, len(MERGED) - 1), max_size=20))
    strings = draw(st.lists(st.text(st.sampled_from("ab é日<|"), min_size=1, max_size=5), min_size=1, max_size=3))
    return decode, token_ids, strings, draw(st.lists(st.integers(1, 6), max_size=20))


def blocks_of(token_ids, sizes):
    start = 0
    for size in [*sizes, len(token_ids)]:
        if block := token_ids[start : start + size]:
            yield block
        start += size


@settings(max_examples=200)
@given(outputs())
def test_stops_and_streams_equal_decoding_everything_after_each_token(case):
    decode, token_ids, strings, sizes = case
    count, text = obvious(decode, token_ids, strings)
    stops, stream, seen, pieces, found = Detokenizer(decode, strings), Detokenizer(decode, strings), 0, [], None
    for block in blocks_of(token_ids, sizes):
        found = stops.stop_within(block)
        kept = block[:found]
        pieces.append(stream.push(kept))
        seen += len(kept)
        assert text.startswith("".join(pieces))  # no emitted text is cut off later
        if found:
            whole = decode(token_ids[:seen])
            assert whole[: end_of(whole, strings)] == text
            break
    assert (seen if found else None) == count
    assert "".join(pieces) + stream.push([], final=True) == text
    assert stream.is_complete == (count is not None)


@given(st.text(max_size=30), st.lists(st.integers(1, 5), max_size=60))
def test_pieces_make_up_the_text_and_no_piece_is_half_a_character(text, sizes):
    token_ids = TOKENIZER.encode(text)
    stream = Detokenizer(decode_bytes)
    pieces = [stream.push(block) for block in blocks_of(token_ids, sizes)]
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + stream.push([], final=True) == decode_bytes(token_ids)


def test_spaces_that_depend_on_the_token_before_survive_empty_steps():
    """SentencePiece decoders drop the space before the first token."""
    words = ["one", "two", "three"]
    stream = Detokenizer(lambda token_ids: " ".join(words[token] for token in token_ids))
    pieces = [stream.push([]), stream.push([0]), stream.push([]), stream.push([1]), stream.push([]), stream.push([2])]
    assert "".join(pieces) + stream.push([], final=True) == "one two three"
