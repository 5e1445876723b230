"""Ids as people and programs spell them: one person in many ways, and different persons who look
alike.
"""

from __future__ import annotations

from unicodedata import normalize

from hypothesis import strategies as st

# No two of these are one person.
PEOPLE = (
    "7",
    "007",
    "+7",
    "7e0",
    "1_000",
    "70",
    "Zoë",
    "zoë",
    "a b",
    "q",
    "0",
    "2.5",
    "1000",
    "é-1",
)
WHOLE = tuple(name for name in PEOPLE if name.isdigit() and str(int(name)) == name)
BLANKS = ("", " ", "  ", "\t", "\u00a0", "\u3000")


def decimals(name: str) -> list[str]:
    """The ways to write the value of a plain decimal; other ids have one."""
    if name in WHOLE:
        return [name, f"{name}.0", f"{name}.00"]
    return [name, f"{name}0"] if name == "2.5" else [name]


@st.composite
def spelled(draw: st.DrawFn, name: str) -> str:
    """One spelling of ``name``: decimals, blanks around it, letters with accents in one or two
    characters.
    """
    text = draw(st.sampled_from(decimals(name)))
    text = normalize(draw(st.sampled_from(["NFC", "NFD"])), text)
    return draw(st.sampled_from(BLANKS)) + text + draw(st.sampled_from(BLANKS))


@st.composite
def number(draw: st.DrawFn, name: str) -> str:
    """One spelling of a whole number that a column of numbers reads, without blanks."""
    return draw(st.sampled_from(decimals(name)))
