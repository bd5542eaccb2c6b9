"""Our harmony parser against OpenAI's, token by token, on possible outputs of a model."""

from __future__ import annotations

from itertools import groupby

from hypothesis import example, given, settings
from hypothesis import strategies as st

from speculant_verifier.conversation.harmony import ChannelSplitter
from speculant_verifier.conversation.harmony_tokens import HarmonyTokens
from speculant_verifier.conversation.text import Detokenizer
from support.harmony import HARMONY_NAMES, official_harmony

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<|>"), min_size=1, max_size=40)
CALLED = st.sampled_from(["functions.get_weather", "functions.a-b", "functions.x_1"])
MESSAGES = st.one_of(
    st.tuples(st.just("<|channel|>analysis<|message|>"), TEXTS, st.just("<|end|>")),
    st.tuples(st.just("<|channel|>commentary<|message|>"), TEXTS, st.just("<|end|>")),
    st.tuples(
        CALLED.map(lambda name: f"<|channel|>commentary to={name} <|constrain|>json<|message|>"),
        TEXTS,
        st.just("<|call|>"),
    ),
    st.tuples(st.just("<|channel|>final<|message|>"), TEXTS, st.just("<|return|>")),
)


@settings(max_examples=60)
@example(messages=[("<|channel|>commentary to=functions.x_1 <|constrain|>json<|message|>", " ", "<|call|>")], cut=0)
@example(messages=[("<|channel|>commentary to=functions.x_1 <|constrain|>json<|message|>", "\x85", "<|call|>")], cut=0)
@given(messages=st.lists(MESSAGES, min_size=1, max_size=4), cut=st.integers(0, 6))
def test_the_same_messages(messages, cut):
    tokenizer, library, encoding = official_harmony()
    written = "<|start|>assistant".join("".join(message) for message in messages)
    tokens = encoding.encode(written, allowed_special="all")
    [begin] = encoding.encode("<|message|>", allowed_special="all")
    tokens = tokens[: max(tokens.index(begin) + 1, len(tokens) - cut)]  # ours shows text without a message verbatim
    names = dict(zip(tokenizer.convert_tokens_to_ids(HARMONY_NAMES), HARMONY_NAMES, strict=True))
    parser = library.StreamableParser(encoding, role=library.Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    found = [(each.channel, each.recipient, "".join(part.text for part in each.content)) for each in parser.messages]
    found = [  # ours gives a call without arguments an empty object
        (channel, recipient, text if recipient is None or text.strip(" \t\r\n") else text + "{}")
        for channel, recipient, text in found
    ]
    if [token for token in tokens if token in names][-1] == begin:  # the last message was cut off
        found.append((parser.current_channel, parser.current_recipient, parser.current_content))
    expected = []
    for channel, recipient, text in found:
        if recipient is not None:
            expected += [("name", recipient.removeprefix("functions.")), ("arguments", text)]
        else:
            expected.append(("reasoning" if channel == "analysis" else "content", text))

    splitter = ChannelSplitter(HarmonyTokens(names), tokenizer.decode, ())
    texts = Detokenizer(tokenizer.decode)
    pieces = [piece for token in tokens for piece in splitter.push([token], texts.push([token]))]
    pieces += splitter.push([], texts.push([], final=True), final=True)
    if pieces and pieces[-1][1].endswith("\ufffd"):  # a cut-off character, which the library omits
        kind, text = pieces.pop()
        pieces += [(kind, whole)] if (whole := text.rstrip("\ufffd")) else []
    assert joined(pieces) == joined([piece for piece in expected if piece[1]])


def joined(pieces):
    """Join adjacent pieces of one kind; names stay separate, because each name begins a call."""
    return [
        (kind, "".join(text for _, text in group)) if kind != "name" else (kind, next(group)[1])
        for kind, group in groupby(pieces, key=lambda piece: piece[0])
    ]
