"""Files of prompts: valid lines, and ambiguous ones, which are refused instead of guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculant_graph.errors import ConfigError
from speculant_verifier.cli.prompt_input import read_prompts


def test_texts_ids_and_conversations(tmp_path: Path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n\n"b"\n[1, 2]\n{"messages": [{"role": "user"}]}\n', encoding="utf-8")
    lines = list(read_prompts([], path))
    assert [line.prompt for line in lines] == ["a", "b", [1, 2], None]
    assert lines[-1].messages == [{"role": "user"}]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"prompt": "a", "prompt": "b"}', "'prompt'"),
        ('{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "'content'"),
        ('{"prompt": "a", "messages": []}', "'messages'"),
        ('{"text": "a"}', "'prompt'"),
        ('{"prompt": {}}', "prompt"),
        ("{", "JSON"),
    ],
)
def test_what_would_be_lost_is_refused(line: str, named: str, tmp_path: Path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        list(read_prompts([], path))
    assert named in str(raised.value)
    assert "line 2" in str(raised.value)
