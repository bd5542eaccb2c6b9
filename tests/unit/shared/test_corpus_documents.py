"""Packed files, JSON records and PDF as documents."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.corpus import source as source_module
from speculant_graph.corpus.documents import read_documents
from speculant_graph.corpus.files import CorpusFile
from speculant_graph.corpus.records import read_json, read_json_lines
from speculant_graph.corpus.source import Source
from speculant_graph.errors import CorpusError

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=6,
)


def _texts(path: Path, text_field: str = "text") -> list[str]:
    return ["".join(document.texts) for document in read_documents(Source(path), text_field)]


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


PACKERS = {".gz": gzip.compress, ".zst": zstandard.compress, "": bytes}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("block", [3, 1 << 16])
def test_packed_files_are_unpacked_and_digested_as_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str, block: int
) -> None:
    for name in ("_BLOCK_BYTES", "_GZIP_STEP_BYTES", "_ZSTD_STEP_BYTES"):
        monkeypatch.setattr(source_module, name, block)
    pack = PACKERS[packing]
    text = "".join(f"line {number}\n" for number in range(3000))
    data = pack(text.encode()[:700]) + pack(b"") + pack(text.encode()[700:])  # archives may be appended to
    path = _file(tmp_path / f"a.txt{packing}", data)
    source = Source(path)
    assert "".join("".join(document.texts) for document in read_documents(source, "text")) == text
    assert source.describe() == CorpusFile(str(path), len(data), hashlib.sha256(data).hexdigest())


def _zstd_stream(text: bytes, window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return stream.compress(text) + stream.flush()


def test_zstd_streams_and_large_windows(tmp_path: Path) -> None:
    short = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"
    long = b"\x5f\x2a\x4d\x18\x00\x02\x00\x00" + bytes(512)
    data = short + long + _zstd_stream(b"text " * 100, 27) + long + _zstd_stream(b"more", 10) + short
    assert _texts(_file(tmp_path / "a.zst", data)) == ["text " * 100 + "more"]
    with pytest.raises(CorpusError, match=r"a\.zst: needs a window of more than 128 MiB to be unpacked; pack the file"):
        _texts(_file(tmp_path / "a.zst", _zstd_stream(b"text", 28)))


def test_zeros_may_follow_gzip_members(tmp_path: Path) -> None:
    zeros = bytes(10_000)
    data = gzip.compress(b"one ") + zeros + gzip.compress(b"two") + zeros
    path = _file(tmp_path / "a.gz", data)
    assert _texts(path) == ["one two"]
    for damaged in (zeros, zeros + gzip.compress(b"one"), data + b"tail", zstandard.compress(b"one") + zeros):
        name = "a.zst" if damaged[:1] == b"\x28" else "a.gz"
        with pytest.raises(CorpusError, match="damaged archive"):
            _texts(_file(tmp_path / name, damaged))


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_dense_archives_come_in_small_blocks(tmp_path: Path, packing: str) -> None:
    size = 60_000_000
    path = _file(tmp_path / f"a{packing}", PACKERS[packing](b" " * size))
    assert path.stat().st_size < 100_000
    blocks = [(len(block), block.count(b" ")) for block in Source(path).blocks()]
    assert sum(num_bytes for num_bytes, _ in blocks) == sum(blanks for _, blanks in blocks) == size
    assert max(num_bytes for num_bytes, _ in blocks) <= (4 << 20) + (1 << 18)


@pytest.mark.parametrize("packing", [".gz", ".zst"])
def test_damaged_archives_are_errors(tmp_path: Path, packing: str) -> None:
    data = PACKERS[packing](bytes(range(1, 128)) * 100)
    path = tmp_path / f"a.txt{packing}"
    for damaged in (data[:-3], data[:5], data + b"tail", b"no archive"):
        with pytest.raises(CorpusError, match=r"a\.txt.*: damaged archive \(.*copy or pack"):
            _texts(_file(path, damaged))
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    with pytest.raises(CorpusError, match=r"damaged archive|is not UTF-8|looks binary"):
        _texts(_file(path, bytes(flipped)))
    assert _texts(_file(path, b"")) == [""]


def test_json_lines(tmp_path: Path) -> None:
    lines = [
        '{"text": "a\\r\\nb"}',
        "",
        '  {"id": 1, "text": ["c", "d"]} ',
        '"e"',
        '{"text": ""}',
        '{"text": "f\u2028g"}',
    ]
    expected = ["a\r\nb", "c\nd", "e", "", "f\u2028g"]
    for ending in ("\n", "\r\n"):
        data = "\ufeff".encode() + ending.join(lines).encode()
        assert _texts(_file(tmp_path / "a.jsonl", data)) == expected
        assert _texts(_file(tmp_path / "a.ndjson.gz", gzip.compress(data + ending.encode()))) == expected


def test_text_fields_lead_into_objects_and_may_have_dots_in_their_names(tmp_path: Path) -> None:
    path = _file(tmp_path / "a.jsonl", b'{"a": {"b": {"c": "x"}}}\n"y"')
    assert _texts(path, text_field="a.b.c") == ["x", "y"]
    path = _file(tmp_path / "a.jsonl", b'{"a.b": "x"}\n{"a": {"b": "y"}}\n{"a": {"b": "z"}, "a.b": ["v", "w"]}')
    assert _texts(path, text_field="a.b") == ["x", "y", "v\nw"]
    path = _file(tmp_path / "a.jsonl", b'{"a.b": 1, "a": {"b": "y"}}')
    with pytest.raises(CorpusError, match=r"field 'a\.b' is a number, not text"):
        _texts(path, text_field="a.b")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", r"a\.jsonl: line 2: is no JSON \(.*correct it"),
        ("[" * 100_000, r"line 2: is no JSON"),
        ("3", r"line 2: a number where an object with field 'a\.b' should be"),
        ('{"b": 1, "c": 2}', r"line 2: no field 'a\.b' \(there are: b, c\); set --graph\.text-field"),
        ('{"a": {"b": ["x", 1]}}', r"line 2: field 'a\.b' is a list, not text"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = _file(tmp_path / "a.jsonl", f'{{"a": {{"b": "good"}}}}\n{line}\n'.encode())
    with pytest.raises(CorpusError, match=message) as caught:
        _texts(path, text_field="a.b")
    assert "\n" not in str(caught.value)


def test_token_ids_of_records(tmp_path: Path) -> None:
    lines = b'{"a": {"ids": [3, 0, 9]}}\n{"a.ids": [1], "a": 2}\n{"a": {"ids": []}, "text": 5}\n'
    source = Source(_file(tmp_path / "a.jsonl", lines))
    documents = list(read_documents(source, "text", "a.ids", 10))
    assert [document.token_ids.tolist() for document in documents if document.token_ids is not None] == [
        [3, 0, 9],
        [1],
        [],
    ]
    assert [list(document.texts) for document in documents] == [[], [], []]
    plain = Source(_file(tmp_path / "a.txt", b"text all the same"))
    assert [document.token_ids for document in read_documents(plain, "text", "ids", 10)] == [None]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ('{"text": "x"}', r"no field 'ids' \(there are: text\); set --graph\.token-ids-field to one with token ids$"),
        ('"text"', "a string where an object with field 'ids' should be; correct the record$"),
        ('{"ids": "1 2"}', "field 'ids' is a string, not a list of token ids; set --graph.token-ids-field"),
        ('{"ids": [1, true]}', "item 1 of field 'ids' is a truth value, not a token id; set"),
        ('{"ids": [9, 10]}', r"item 1 of field 'ids' is none of the ids 0 to 9; set --graph\.tokenizer-name"),
        (f'{{"ids": [{2**70}]}}', "item 0 of field 'ids' is none of the ids 0 to 9; set"),
    ],
)
def test_records_without_proper_token_ids_are_named(tmp_path: Path, record: str, message: str) -> None:
    for name, content, location in (
        ("a.jsonl", f'{{"ids": [1]}}\n{record}\n', "line 2"),
        ("a.json", f'[{{"ids": [1]}}, {record}]', "record 2"),
    ):
        path = _file(tmp_path / name, content.encode())
        with pytest.raises(CorpusError, match=f"^{path}: {location}: {message}") as caught:
            list(read_documents(Source(path), "text", "ids", 10))
        assert "\n" not in str(caught.value)


@given(values=st.lists(JSON_VALUES, max_size=5), block=st.integers(1, 40), indent=st.sampled_from([None, 2]))
def test_arrays_and_lines_are_read_in_blocks(values: list[object], block: int, indent: int | None) -> None:
    def blocks(text: str) -> list[str]:
        return [text[start : start + block] for start in range(0, len(text), block)]

    array = f" {json.dumps(values, indent=indent)}\n"
    read = list(read_json(blocks(array), "a.json"))
    assert [value for _, value in read] == values
    assert [location for location, _ in read] == [f"a.json: record {number}" for number in range(1, len(values) + 1)]
    lines = "\n\n".join(json.dumps(value, ensure_ascii=False) for value in values)
    read = list(read_json_lines(blocks(lines), "a.jsonl"))
    assert [value for _, value in read] == values
    assert [location for location, _ in read] == [f"a.jsonl: line {2 * number + 1}" for number in range(len(values))]


@given(values=st.lists(JSON_VALUES, max_size=4), cut=st.integers(1, 200), block=st.integers(1, 40))
def test_arrays_that_end_too_soon_are_errors(values: list[object], cut: int, block: int) -> None:
    text = json.dumps(values)
    text = text[: max(1, len(text) - cut)]
    blocks = [text[start : start + block] for start in range(0, len(text), block)]
    with pytest.raises(CorpusError, match=r"^a\.json: record \d+: is no JSON"):
        list(read_json(blocks, "a.json"))


def test_json_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert _texts(_file(path, b'[{"text": "a"}, "b" ]')) == ["a", "b"]
    assert _texts(_file(path, b' {"text": "a"} ')) == ["a"]
    assert _texts(_file(path, b"[]")) == _texts(_file(path, b" \n")) == []
    for data, message in (
        (b'{"text": "a"}\n{"text": "b"}', r"a\.json: goes on after its JSON value; name it \.jsonl"),
        (b'["a" "b"]', r"a\.json: record 1: is no JSON \(no comma"),
        (b'["a", 1]', r"a\.json: record 2: a number where an object"),
        (b"nonsense", r"a\.json: is no JSON"),
    ):
        with pytest.raises(CorpusError, match=message):
            _texts(_file(path, data))


def _pdf(*pages: str) -> bytes:
    """Write the smallest PDF with these lines of ASCII text, one a page; an empty one has a page without text."""
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


def test_pdf_pages_are_joined(tmp_path: Path) -> None:
    data = _pdf("First page", "Second page")
    path = _file(tmp_path / "a.pdf", data)
    source = Source(path)
    assert ["".join(document.texts) for document in read_documents(source, "text")] == ["First page\nSecond page"]
    assert source.describe().sha256 == hashlib.sha256(data).hexdigest()
    assert _texts(_file(tmp_path / "a.pdf.gz", gzip.compress(data))) == ["First page\nSecond page"]


def test_pdf_without_text_is_a_warning(tmp_path: Path, warnings: list[str]) -> None:
    assert _texts(_file(tmp_path / "scan.pdf", _pdf("", ""))) == [""]
    assert ["scan.pdf has pages but no text" in message for message in warnings] == [True]
    assert _texts(_file(tmp_path / "empty.pdf", b"")) == [""]


def test_broken_and_encrypted_pdf_is_an_error(tmp_path: Path) -> None:
    from pypdf import PdfReader, PdfWriter

    for data in (b"%PDF-1.4 and nothing more", b"no pdf at all", _pdf("text")[:200]):
        with pytest.raises(CorpusError, match=r"a\.pdf: is no PDF that can be read"):
            _texts(_file(tmp_path / "a.pdf", data))
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(_pdf("secret"))))
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(tmp_path / "b.pdf")
    with pytest.raises(CorpusError, match=r"b\.pdf: is encrypted; save it without a password"):
        _texts(tmp_path / "b.pdf")


@pytest.mark.parametrize(("module", "name"), [("zstandard", "a.zst"), ("pypdf", "a.pdf")])
def test_missing_modules_name_their_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r'a\.\w+ needs: pip install "speculant-graph\[build\]"'):
        _texts(_file(tmp_path / name, b"data"))
