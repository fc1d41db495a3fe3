"""Lists of topics: names, regular expressions, files."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kmirror.errors import UsageError
from kmirror.settings.patterns import TopicSelector, is_plain_name, split_patterns

TOPICS = ["a.b", "aXb", "orders", "orders-eu", "orders-us", "payments", "x"]


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("orders", ["orders"]),
        ("orders,payments", ["orders", "payments"]),
        (" orders , payments ,", ["orders", "payments"]),
        ("a{1,3},b", ["a{1,3}", "b"]),
        ("(a,b|c{2,}),d", ["(a,b|c{2,})", "d"]),
        ("[a,b]+,[^],]x,c", ["[a,b]+", "[^],]x", "c"]),
        ("[],a],b", ["[],a]", "b"]),
        ("[[:alpha:],x]+,b", ["[[:alpha:],x]+", "b"]),
        ("[(]a,b", ["[(]a", "b"]),
        (r"a\(,b", [r"a\(", "b"]),
        (r"a\,b,c", [r"a\,b", "c"]),
        (r"[\],]x,c", [r"[\],]x", "c"]),
    ],
)
def test_lists_are_split_at_commas_outside_brackets(text: str, patterns: list[str]) -> None:
    assert split_patterns(text) == patterns


@pytest.mark.parametrize(
    ("values", "selected"),
    [
        (["orders"], ["orders"]),
        (["orders.*"], ["orders", "orders-eu", "orders-us"]),
        (["orders-(eu|us),payments"], ["orders-eu", "orders-us", "payments"]),
        (["orders-eu", "x"], ["orders-eu", "x"]),
        (["a.b"], ["a.b"]),
        (["a(.)b"], ["a.b", "aXb"]),
        (["rder.*"], []),
        (["(?i)ORDERS"], ["orders"]),
        (["orders|x"], ["orders", "x"]),
        (["order[s]?"], ["orders"]),
        ([".*"], TOPICS),
        ([], []),
    ],
)
def test_select(values: list[str], selected: list[str]) -> None:
    assert TopicSelector.parse(values).select(reversed(TOPICS)) == selected


def test_names_and_expressions_are_distinguished() -> None:
    selector = TopicSelector.parse(["orders,new-.*", "gone_1", "orders", "x|y"])
    assert selector.patterns == ("orders", "new-.*", "gone_1", "x|y")
    assert selector.names == ("orders", "gone_1")
    assert selector.expressions == ("new-.*", "x|y")
    assert selector.missing_names(TOPICS) == ["gone_1"]
    assert selector.unmatched(TOPICS) == ["new-.*", "gone_1"]
    assert not is_plain_name("orders*")


def test_plus_keeps_the_order_and_no_pattern_twice() -> None:
    assert TopicSelector(("a", "b.*")).plus(TopicSelector(("c", "a"))) == TopicSelector(("a", "b.*", "c"))


def test_files(tmp_path: Path) -> None:
    (tmp_path / "topics, all").write_text("# ours\norders\n\n  payments-[a,b]  \r\nx,y\n")
    assert TopicSelector.parse([f"@{tmp_path}/topics, all", "z"]).patterns == (
        "orders",
        "payments-[a,b]",
        "x",
        "y",
        "z",
    )


def test_it_pickles() -> None:
    selector = TopicSelector.parse(["orders-.*"])
    assert selector.matches("orders-eu")
    assert pickle.loads(pickle.dumps(selector)).select(TOPICS) == ["orders-eu", "orders-us"]


@pytest.mark.parametrize(
    ("pattern", "message", "hint"),
    [
        ("a(?=b)", "a(?=b) is not understood at character 2: look-around is not supported", "--exclude"),
        ("(?!internal).*", "(?!internal).* is not understood at character 1: look-around", "--exclude"),
        ("[(?=](?<!x)", "[(?=](?<!x) is not understood at character 6: look-around", "--exclude"),
        (r"(a)\1", r"(a)\1 is not understood at character 4: back references are not supported", "re2"),
        (r"(?P<x>a)(?P=x)", "is not understood at character 9: back references are not supported", "re2"),
        (r"\\(a)\1", r"\\(a)\1 is not understood at character 6: back references", "re2"),
        ("*", "* is not understood at character 1: no argument for repetition operator", "for every topic write .*"),
        ("ab**", "ab** is not understood at character 3: bad repetition operator", "re2"),
        ("a(b", "a(b is not understood at character 2: a bracket is not closed", "re2"),
        ("(a(b)", "(a(b) is not understood at character 1: a bracket is not closed", "re2"),
        ("a[b", "a[b is not understood at character 2: a bracket is not closed", "re2"),
        ("a{b", "a{b is not understood at character 2: a bracket is not closed", "backslash"),
        ("a)b", "a)b is not understood at character 2: unexpected )", "re2"),
        ("x[z-a]", "x[z-a] is not understood at character 3: invalid character class range", "re2"),
        ("a{5000}", "a{5000} is not understood at character 2: invalid repetition size", "re2"),
        ("a\\", "a\\ is not understood at character 2: trailing \\", "re2"),
        ("@x", "@x cannot be part of a list", "give @FILE by itself"),
    ],
)
def test_patterns_that_are_refused(pattern: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        TopicSelector.parse([f"fine,{pattern}"], "--exclude")
    assert refusal.value.message.startswith("--exclude: ")
    assert message in refusal.value.message
    assert hint in str(refusal.value.hint)


def test_lists_and_files_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n\n")
    (tmp_path / "bad").write_text("orders\na(b\n")
    for value, message in {
        "": "--topics is empty",
        " , ": "--topics is empty",
        f"@{tmp_path}/none": f"--topics: cannot read {tmp_path}/none: No such file or directory",
        f"@{tmp_path}": f"--topics: cannot read {tmp_path}: Is a directory",
        f"@{tmp_path}/empty": f"--topics: {tmp_path}/empty contains no pattern",
        f"@{tmp_path}/bad": f"--topics @{tmp_path}/bad: the pattern a(b is not understood at character 2: "
        "a bracket is not closed",
    }.items():
        with pytest.raises(UsageError) as refusal:
            TopicSelector.parse([value])
        assert refusal.value.message == message


def test_what_is_written_out_reads_the_same_again() -> None:
    """Stored filters are one line of text: whatever was accepted must come back from it."""
    chance = random.Random(17)
    pieces = [
        "a",
        "b",
        ".",
        "-",
        ",",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "{1,2}",
        "\\",
        "^",
        "|",
        "*",
        "[:alpha:]",
        "\\(",
        "x,",
    ]
    accepted = 0
    for _ in range(5000):
        values = ["".join(chance.choices(pieces, k=chance.randrange(1, 8))) for _ in range(2)]
        try:
            selector = TopicSelector.parse(values)
        except UsageError:
            continue
        accepted += 1
        assert TopicSelector.parse([str(selector)]) == selector, values
    assert accepted > 200


def test_a_bad_pattern_writes_nothing_of_its_own() -> None:
    """RE2's library logs to stderr by default."""
    program = (
        "from kmirror.settings.patterns import *\ntry: TopicSelector.parse(['a(b'])\nexcept Exception as e: print(e)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "--topics: the pattern a(b is not understood at character 2: a bracket is not closed\n"
    assert result.stderr == ""


def test_a_pattern_that_explodes_elsewhere_takes_linear_time() -> None:
    """Python's own engine would need longer than the sun has left."""
    assert not TopicSelector.parse(["(a*)*b"]).matches("a" * 249)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "windows").write_bytes(b"\xef\xbb\xbforders\r\nusers\r\n")
    assert TopicSelector.parse([f"@{tmp_path}/windows"]).patterns == ("orders", "users")
