"""Text that clients send: what no name and no note may contain."""

from __future__ import annotations

import re
import unicodedata

from bgad.errors import ImageError

MAX_NAME_LENGTH = 1000  # of a file name with its folders
_LINES = "\t\n\r"
_CONTROL = ("Cc", "Cs", "Zl", "Zp")  # categories of Unicode: control, surrogate, line and paragraph separators
# They change the order in which the letters after them are shown, so that exe.gnp looks like png.exe.
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_plain(text: str, *, lines: bool = False) -> bool:
    """Return whether a text has neither control characters, line separators nor such that change the direction of
    writing.

    With `lines`, it may have tabs and the usual line breaks (LF, CR), but not the separators U+2028 and U+2029.

    >>> is_plain("part 7.png"), is_plain("a\\x1b[31m"), is_plain("\\u202egnp.exe"), is_plain("a\\nb", lines=True)
    (True, False, False, True)
    """
    return not any(
        letter in _BIDIRECTIONAL or (unicodedata.category(letter) in _CONTROL and not (lines and letter in _LINES))
        for letter in text
    )


def check_file_name(name: str) -> None:
    """Raise ImageError for a file name that no camera sends: one that could deceive a reader or a program."""
    if len(name) > MAX_NAME_LENGTH:
        raise ImageError(f"the name of the image has {len(name)} characters, more than {MAX_NAME_LENGTH}: shorten it")
    if not is_plain(name):
        raise ImageError("the name of the image has control characters: send one without")
    if "<" in name or ">" in name:
        raise ImageError("the name of the image has < or > in it: send one without")
    if ".." in re.split(r"[\\/]", name):
        raise ImageError("the name of the image has .. as a folder: send the name alone")
