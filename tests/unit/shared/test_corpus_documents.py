"""Text, compressed files, JSON records and PDF as documents."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.config import GraphConfig
from speculant_graph.corpus import documents as documents_module
from speculant_graph.corpus import source as source_module
from speculant_graph.corpus.documents import Document, read_documents
from speculant_graph.corpus.source import CorpusFile, Source
from speculant_graph.errors import CorpusError


def _file(path: Path, data: bytes) -> Source:
    path.write_bytes(data)
    return Source(path)


def _read(source: Source, **config: str) -> list[Document]:
    return list(read_documents(source, GraphConfig(**config), 10))


def _texts(source: Source, **config: str) -> list[str]:
    return ["".join(document.texts) for document in read_documents(source, GraphConfig(**config), 10)]


@pytest.mark.parametrize("pack", [gzip.compress, bytes])
@pytest.mark.parametrize("block", [3, 1 << 16])
def test_packed_files_are_unpacked_and_digested_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: type[bytes], block: int
) -> None:
    monkeypatch.setattr(source_module, "_BLOCK_BYTES", block)
    text = "".join(f"line {number}\n" for number in range(3000))
    data = pack(text.encode()[:700]) + pack(b"") + pack(text.encode()[700:])  # gzip allows several members
    path = tmp_path / ("a.txt" if pack is bytes else "a.txt.gz")
    source = _file(path, data)
    assert _texts(source) == [text]
    assert source.describe("text") == CorpusFile(str(path), len(data), hashlib.sha256(data).hexdigest())


def test_damaged_archives_are_errors(tmp_path: Path) -> None:
    data = gzip.compress(bytes(range(1, 128)) * 100)
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    for damaged in (data[:-3], data[:5], data + b"tail", b"no archive", bytes(flipped)):
        with pytest.raises(CorpusError):
            _texts(_file(tmp_path / "a.txt.gz", damaged))
    assert _texts(_file(tmp_path / "a.txt.gz", b"")) == [""]


@given(text=st.text(alphabet="ab é/.\n\r𝄞\ufeff", max_size=80), block=st.integers(1, 9))
def test_text_is_what_the_file_has_with_plain_line_ends(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int
) -> None:
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    path = tmp_path_factory.mktemp("text") / "a"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents_module, "_BLOCK_CHARACTERS", block)
        for data, whole in (
            (text.encode("utf-8-sig"), expected),
            (text.encode(), expected.removeprefix("\ufeff")),
        ):
            is_blank = whole.isspace() and len(whole) < block
            assert _texts(_file(path, data)) == ["" if is_blank else whole]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"fine \xff", r"a\.txt: is not UTF-8 \(invalid start byte\); set graph\.encoding"),
        ("a.txt", b"\x7fELF\x02\0\0", r"looks binary; leave it out, or convert it"),
        ("a.jsonl", b'"good"\n{oops', r"a\.jsonl: line 2: is not JSON \(Exp.* at character 2\); correct"),
        ("a.jsonl", b'"good"\n' + b"[" * 100_000, r"line 2: is nested too deeply; correct it"),
        ("a.jsonl", b'{"b": 1, "c": 2}', r"line 1: no field 'a\.b' \(there are: b, c\); set graph\.text_field"),
        ("a.json", b'["one", "half \\ud83d"]', r"record 2: half of a surrogate pair .* correct"),
        ("a.pdf", b"%PDF-1.4 and nothing more", r"a\.pdf: is not a readable PDF"),
        ("gone.txt", None, r"can't be read \(No such file or directory\); check"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    source = Source(tmp_path / name) if data is None else _file(tmp_path / name, data)
    # Promised behaviour: each error of a file has its own message.
    with pytest.raises(CorpusError, match=message) as caught:
        _texts(source, text_field="a.b")
    assert "\n" not in str(caught.value)


def test_json_lines(tmp_path: Path) -> None:
    lines = [
        '{"text": "a\\r\\nb"}', "", '  {"id": 1, "text": "c"} ', '"e"', '{"text": ""}', '{"text": "f\u2028g"}',
    ]  # fmt: skip
    expected = ["a\r\nb", "c", "e", "", "f\u2028g"]
    for ending in ("\n", "\r\n"):
        data = "\ufeff".encode() + ending.join(lines).encode()
        assert _texts(_file(tmp_path / "a.jsonl", data)) == expected
        assert _texts(_file(tmp_path / "a.ndjson.gz", gzip.compress(data + ending.encode()))) == expected


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert _texts(_file(path, json.dumps([{"text": "a"}, "b"], indent=2).encode())) == ["a", "b"]
    assert _texts(_file(path, b' {"text": "a"} ')) == ["a"]
    assert _texts(_file(path, b"[]")) == _texts(_file(path, b" \n")) == []


def test_token_ids_of_records(tmp_path: Path) -> None:
    lines = b'{"a": {"ids": [3, 0, 9]}}\n{"a.ids": [1], "a": 2}\n{"a": {"ids": "text"}}\n'
    ids, one, text = _read(_file(tmp_path / "a.jsonl", lines), text_field="a.ids")
    assert ids.token_ids is not None
    assert one.token_ids is not None
    assert (ids.token_ids.tolist(), one.token_ids.tolist(), text.token_ids) == ([3, 0, 9], [1], None)
    assert [list(document.texts) for document in (ids, one, text)] == [[], [], ["text"]]


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ('{"ids": [1, true]}', "graph.text_field"),
        ('{"ids": [9, 10]}', "graph.tokenizer_name"),
        (f'{{"ids": [{2**70}]}}', "graph.tokenizer_name"),
    ],
)
def test_records_without_proper_token_ids_are_named(tmp_path: Path, record: str, field: str) -> None:
    source = _file(tmp_path / "a.json", f'[{{"ids": [1]}}, {record}]'.encode())
    with pytest.raises(CorpusError) as caught:
        _read(source, text_field="ids")
    assert (caught.value.field, f"{source.path}: record 2: " in str(caught.value)) == (field, True)


def _pdf(*pages: str) -> bytes:
    """Write a minimal PDF with one line of ASCII text per page; an empty line gives a page without text."""
    first_page = 4
    kids = " ".join(f"{first_page + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, page in enumerate(pages):
        content = f"BT /F1 12 Tf 72 700 Td ({page}) Tj ET" if page else ""
        resources = "/Resources << /Font << /F1 3 0 R >> >> /MediaBox [0 0 612 792]"
        objects += [
            f"<< /Type /Page /Parent 2 0 R {resources} /Contents {first_page + 2 * number + 1} 0 R >>",
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        ]
    data, offsets = "%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    trailer = f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return (data + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n" + table + trailer).encode("ascii")


def test_pdf_pages_are_joined(tmp_path: Path, warnings: list[str]) -> None:
    data = gzip.compress(_pdf("First page", "Second page"))
    source = _file(tmp_path / "a.pdf.gz", data)
    assert _texts(source) == ["First page\nSecond page"]
    assert source.describe("text").sha256 == hashlib.sha256(data).hexdigest()
    assert warnings == []
    assert _texts(_file(tmp_path / "scan.pdf", _pdf("", ""))) == [""]
    assert ["scan.pdf has pages but no text" in message for message in warnings] == [True]
    assert _texts(_file(tmp_path / "empty.pdf", b"")) == [""]
