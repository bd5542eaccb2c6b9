"""The encoding of text: byte order marks, UTF-8, a named encoding, or a guess, but never a doubtful guess."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.encoding import find_encoding
from speculant_graph.corpus.source import UTF_8, Source
from speculant_graph.errors import ConfigError, CorpusError

FRENCH = "L'été dernier, à la façon des élèves, le garçon a mangé une crêpe. Où est la forêt ? Ça va bien, Noël.\n"
RUSSIAN = "Привет, как дела? Сегодня хорошая погода.\n"
ENGLISH = "Hello world, this is a text of some words.\n"
RECOGNISED = [
    ("cp1252", FRENCH),
    ("cp1252", "Il va à la maison et puis à Paris.\n"),
    ("cp1252", "El año pasado el niño comió en la montaña.\n"),
    ("cp1252", "Die Straße und die Häuser, schöne Grüße.\n"),
    ("cp1252", "This is a naïve approach to the problem – “that kind”.\n"),
    ("cp1252", "# Author: José Núñez\ndef main():\n    return 1\n"),
    ("cp1250", "W tym roku się nie udało, że był na łące, zażółć gęślą jaźń.\n"),
    ("iso8859_2", "W tym roku się nie udało, że był na łące, zażółć gęślą jaźń.\n"),
    ("cp1254", "Bugün hava çok güzel, şimdi ağaçların altında ışık var.\n"),
    ("cp1257", "Ąžuolas auga prie ežero, šiandien gražu ir šviečia saulė.\n"),
    ("cp1251", RUSSIAN),
    ("koi8_r", RUSSIAN),
    ("cp866", RUSSIAN),
    ("cp1253", "Καλημέρα σας, τι κάνετε σήμερα το πρωί;\n"),
    ("cp932", "これは日本語のテキストです。文字コードを調べます。\n"),
    ("euc_jp", "これは日本語のテキストです。文字コードを調べます。\n"),
    ("gb18030", "这是一个中文文本，我们在这里测试编码。他说中国人很多。\n"),
    ("big5", "這是一個中文文本，我們在這裡測試編碼。他說中國人很多。\n"),
    ("cp949", "이것은 한국어 텍스트입니다. 오늘은 날씨가 좋습니다.\n"),
    ("utf-16-le", ENGLISH),
    ("utf-16-be", ENGLISH),
    ("utf-32-le", ENGLISH),
]


def written(folder: Path, data: bytes) -> Source:
    (folder / "a.txt").write_bytes(data)
    return Source(folder / "a.txt")


@pytest.mark.parametrize(("encoding", "text"), RECOGNISED)
def test_a_language_tells_its_encoding(tmp_path: Path, encoding: str, text: str) -> None:
    data = text.encode(encoding)
    found = find_encoding(written(tmp_path, data))
    assert found.is_guess
    assert data.decode(found.name) == text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "ascii"])
def test_what_says_its_encoding_is_no_guess(tmp_path: Path, encoding: str) -> None:
    text = ENGLISH if encoding == "ascii" else FRENCH
    for named in ("auto", "cp1252", "utf-16-le"):
        found = find_encoding(written(tmp_path, text.encode(encoding)), named)
        assert not found.is_guess
        source = Source(tmp_path / "a.txt")
        source.encoding = found.name
        with source.open_text() as file:
            assert file.read() == text


NOISE = random.Random(0)


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("474011100042") * 1000,  # MPEG: of even length, and nearly valid UTF-16
        bytes.fromhex("4740") * 1000 + b"\xff\x10",
        b"A\0B\0" * 500,
        b"\x7fELF\2\0\0",
        b"\xff\xfe" + NOISE.randbytes(3000),
        NOISE.randbytes(3000),
        bytes(NOISE.choice(range(160, 256)) for _ in range(3000)),
        "año\n".encode("cp1252"),  # could also be ańo
        RUSSIAN.encode("utf-16-le"),
    ],
)
def test_what_is_in_doubt_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorpusError) as caught:
        find_encoding(written(tmp_path, data))
    assert "graph.encoding" in str(caught.value) or "begins like UTF-16" in str(caught.value)


@pytest.mark.parametrize("end", [b"\xff", "ß".encode()[:1]])
def test_damaged_utf_8_is_no_other_encoding(tmp_path: Path, end: bytes) -> None:
    with pytest.raises(CorpusError) as caught:
        find_encoding(written(tmp_path, ("Straße " * 20 + "\n\n").encode() + end))
    assert "line 3" in str(caught.value)


def test_a_named_encoding_is_for_what_is_not_utf_8(tmp_path: Path) -> None:
    assert find_encoding(written(tmp_path, "ańo".encode("cp1250")), "cp1250") == ("cp1250", False)
    assert find_encoding(written(tmp_path, "año".encode()), "cp1250") == (UTF_8, False)
    assert find_encoding(written(tmp_path, RUSSIAN.encode("utf-16-le")), "utf-16-le") == ("utf-16-le", False)
    for named in ("ascii", "utf-8", "euc_jp"):
        with pytest.raises(CorpusError):
            find_encoding(written(tmp_path, "année".encode("cp1252")), named)
    with pytest.raises(CorpusError):
        find_encoding(written(tmp_path, b"\x7fELF\2\0\0\xff"), "latin-1")


@pytest.mark.parametrize("name", ["", "foo", "rot13", "base64", "idna", "utf 99", "\0", "undefined"])
def test_names_of_no_encoding_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GraphConfig(encoding=name)
    assert caught.value.field == "graph.encoding"
    assert GraphConfig(encoding="Latin-1").encoding == "Latin-1"
