"""Detects a text's encoding by the letters and the frequent words of its language.

Single-byte encodings decode almost any bytes. French in cp1252, for example, is also valid text in cp1257, but with a
mix of letters that no language has. If no encoding fits a text clearly better than the others, none is chosen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

_WEST, _CENTRAL = ("cp1252", "iso8859_15"), ("cp1250", "iso8859_2")


class _Latin(NamedTuple):
    encodings: tuple[str, ...]
    letters: str
    """The language's lower-case letters beyond ASCII."""
    words: str
    """The language's frequent words that have only ASCII letters."""


_ENGLISH = "the of and to is that for with on as by this are from be or if not return it an"
_LATIN = (
    _Latin(_WEST, "àâæçéèêëîïôœùûüÿ", "le la les de des du et est il en un une que qui dans pour sur pas par au ce"),
    _Latin(_WEST, "áéíñóúüïç", "el la los las de del y que en un una es por con para se su no como"),
    _Latin(_WEST, "áâãàçéêíóôõúü", "o a os as de do da e que em um uma para com por se na no"),
    _Latin(_WEST, "àèéìíîòóùú", "il la le di del della e che in un una per con non si sono al"),
    _Latin(_WEST, "àçèéíïòóúü", "el la els les de del i que en un una per amb no es al"),
    _Latin(_WEST, "äöüßéàè", "der die das und ist nicht ein eine in zu den mit von auf im dem sich des"),
    _Latin(_WEST, "áéèëêïíóöúü", "de het een en van in is dat op te niet zijn met voor"),
    _Latin(_WEST, "æøåéèòóôü", "og er det en et som til av af i jeg ikke med den for de"),
    _Latin(_WEST, "äöåéàü", "och att det som en den av med till inte ett om ja on ei se oli mutta hän kun"),
    _Latin(_WEST, "áðéíóúýþæö", "og er sem til um ekki var hann en af"),
    _Latin(_CENTRAL, "ąćęłńóśźż", "i w na z nie do to jest od po jak o za przez dla tym oraz"),
    _Latin(_CENTRAL, "áčďéěíňóřšťúůýž", "a v na se je to s z do o ve za pro by i jako ale"),
    _Latin(_CENTRAL, "áäčďéíĺľňóôŕšťúýž", "a v na sa je to s z do o vo za aby ako ale"),
    _Latin(_CENTRAL, "áéíóöőúüű", "a az hogy nem is egy van ez meg de csak mint"),
    _Latin(_CENTRAL, "čćđšž", "i je u na se da za od ne su kao in v so ki po"),
    _Latin(_CENTRAL, "ăâîşţ", "de la cu pe nu este un o din care si sau pentru"),
    _Latin(("cp1254",), "çğıöşüâîû", "bir ve bu da de ne ile mi o gibi ama en var"),
    _Latin(("cp1257",), "ąčęėįšųūž", "ir yra kad su tai bet ne kaip buvo jis"),
    _Latin(("cp1257",), "āčēģīķļņšūž", "un ir ka no ar par uz tas kas bet"),
    _Latin(("cp1257",), "äõöüšž", "ja on ei et see ta oli ka kui aga"),
)


class _Script(NamedTuple):
    encodings: tuple[str, ...]
    letters: str
    frequent: str
    """The most frequent letters or characters of texts in this script."""
    least: float
    """Minimum share of the frequent letters among all letters beyond ASCII in a text."""
    alien: str = ""
    """Letters that are rare in texts in this script."""


_KANA = "".join(map(chr, range(0x3041, 0x30FF)))
_SCRIPTS = (
    _Script(
        ("cp1251", "koi8_u", "iso8859_5", "cp866"),
        "абвгдежзийклмнопрстуфхцчшщъыьэюяёіїєґўђјљњћџѓќѕ",
        "оеаинтсрвлкмдпуяі",
        0.55,
    ),
    _Script(("cp1253",), "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώϊϋΐΰ", "αοιετσνηυρπκμλςςίά", 0.55),
    _Script(("cp1255",), "אבגדהוזחטיכךלמםנןסעפףצץקרשת", "יולהרתאמבשםנ", 0.55),
    _Script(("cp1256",), "ابتثجحخدذرزسشصضطظعغفقكلمنهويءآأؤإئةىپچژگ", "ايلنمروتبعهدة", 0.55),
    _Script(("cp932", "euc_jp"), "", _KANA, 0.3),
    _Script(("cp949",), "", "이다는의을가에고하지를도한기로사은어인서자시으리나아그일수해", 0.2),
    _Script(("gb18030",), "", "的一是不了人我在有他这中大来上个国和到说们为子你地出时年得就也可", 0.1, _KANA),
    _Script(("big5",), "", "的一是不了人我在有他這中大來上個國和到說們為子你地出時年得就也可", 0.1, _KANA),
)
ENCODINGS = tuple(dict.fromkeys(name for language in (*_LATIN, *_SCRIPTS) for name in language.encodings))
"""Encodings that this module can tell apart, the most frequent first."""

_MARKS = frozenset("«»‹›“”„‘’‚–—…•·°§©®™€£¥¿¡ªº²³¹¼½¾×÷±µ¶´¨¸\xa0\xad†‡‰¢¤¦¬")
_IN_WORDS = "’·\xad"
_STRAY = re.compile(rf"[^\W\d_][{''.join(sorted(_MARKS - set(_IN_WORDS)))}][^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_MOST_STRANGE = 0.02
_LEAST_HITS, _LEAST_LEAD = 2, 2.0


def decide(sample: bytes, encodings: Iterable[str]) -> str | None:
    """Return the encoding of a text, or None if it is ambiguous.

    Args:
        sample: whole lines of the text; if the text is short, they include all lines with bytes above 127.
        encodings: the candidates, from :data:`ENCODINGS`.
    """
    readings: dict[str, tuple[str, list[float]]] = {}  # text -> its encoding, and the scores of its words
    for encoding in ENCODINGS:
        if encoding not in encodings:
            continue
        text = _decoded(sample, encoding)
        if text is None or any(0x7F <= ord(character) < 0xA0 for character in text):
            continue
        scores = [*_latin_scores(text, encoding), *_script_scores(text, encoding)]
        if scores:
            readings.setdefault(text, (encoding, []))[1].extend(scores)
    ranked = sorted(((max(scores), encoding) for encoding, scores in readings.values()), reverse=True)
    if not ranked:
        return None
    if len(ranked) > 1 and (ranked[0][0] < _LEAST_HITS or ranked[0][0] < _LEAST_LEAD * ranked[1][0]):
        return None
    return ranked[0][1]


def _decoded(sample: bytes, encoding: str) -> str | None:
    try:
        return sample.decode(encoding)
    except UnicodeDecodeError:
        return None


def _latin_scores(text: str, encoding: str) -> list[float]:
    """Return, for each language whose letters fit the text, how often its frequent words occur in the text."""
    if not any(encoding in language.encodings for language in _LATIN) or len(_STRAY.findall(text)) > 1:
        return []
    letters = Counter(character for character in text.lower() if character > "\x7f" and character not in _MARKS)
    if any(not character.isalpha() for character in letters):
        return []
    words = Counter(word for word in _WORD.findall(text.lower()) if word.isascii())
    english = sum(words[word] for word in _ENGLISH.split())
    scores: list[float] = []
    for language in _LATIN:
        strange = sum(count for letter, count in letters.items() if letter not in language.letters)
        if encoding in language.encodings and strange <= _MOST_STRANGE * letters.total():
            hits = sum(words[word] for word in language.words.split())
            # English has no letters beyond ASCII; the names and loanwords in it are mostly western.
            scores.append(max(hits, english) if language.encodings is _WEST else hits)
    return scores


def _script_scores(text: str, encoding: str) -> list[float]:
    """Return one score for each script that belongs to the encoding and fits the text."""
    scores: list[float] = []
    letters = Counter(character for character in text if character > "\x7f" and character.isalpha())
    for script in _SCRIPTS:
        if encoding not in script.encodings or not letters:
            continue
        frequent = sum(letters[letter] for letter in set(script.frequent)) / letters.total()
        alien = sum(letters[letter] for letter in script.alien) / letters.total()
        if frequent < script.least or alien > _MOST_STRANGE:
            continue
        if script.letters and not _is_of_script(text, letters, script.letters):
            continue
        scores.append(float(letters.total()))
    return scores


def _is_of_script(text: str, letters: Counter[str], alphabet: str) -> bool:
    """Return whether few words mix alphabets, and the script makes up enough of the lines that contain it."""
    strange = sum(count for letter, count in letters.items() if letter.lower() not in alphabet)
    if strange > _MOST_STRANGE * letters.total():
        return False
    words = [word for line in text.splitlines() if not line.isascii() for word in _WORD.findall(line)]
    own = [word for word in words if not word.isascii()]
    mixed = sum(any(character < "\x80" for character in word) for word in own)
    return mixed <= 0.05 * len(own) and sum(map(len, own)) >= 0.3 * sum(map(len, words))
