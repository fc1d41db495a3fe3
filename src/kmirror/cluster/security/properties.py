"""Java `.properties` text, and references to secrets in it.

The text is parsed exactly as by `java.util.Properties.load`, because the same file has to work with Kafka's own tools:
one loop over characters makes logical lines (comments, blank lines, continuations), a second splits each into key and
value, a third resolves the escapes. Files are ISO 8859-1, as in Java; other characters are written `\\uXXXX`.

Secrets in such files are references, resolved only where they are used (KIP-297, KIP-421):

    ${env:NAME}        an environment variable
    ${file:PATH:KEY}   the value of KEY in the Java properties file PATH
    ${dir:PATH:KEY}    the content of the file KEY in the folder PATH, without its last line end

A value may contain several. The value of a reference is not searched for references again.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from kmirror.bounded_files import read_file
from kmirror.cluster.security.jaas import JaasEntry, parse_jaas
from kmirror.cluster.security.trust import BINDING, REFERENCE, Judge
from kmirror.errors import Reason, UnreachableError, UsageError

_WHITE_SPACE = " \t\f"
_ESCAPE = re.compile(r"\\(?:u(?P<digits>.{0,4})|(?P<escaped>.))", re.DOTALL)
_FOUR_HEX_DIGITS = re.compile("[0-9a-fA-F]{4}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY")
_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|\btoken$|(^|[._])private[._]?key$|keystore\.key$", re.IGNORECASE
)
#: PLAIN's broker-side options `user_NAME="PASSWORD"` turn up in copied JAAS lines.
_JAAS_SECRET_NAME = re.compile(_SECRET_NAME.pattern + r"|^user_", re.IGNORECASE)


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of Java properties text; of a repeated key the last value counts.

    Raises:
        UsageError: a `\\u` is not followed by four hexadecimal digits.
    """
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        properties[_unescaped(key)] = _unescaped(value)
    return properties


def read_properties(path: str | Path) -> dict[str, str]:
    """Read a Java properties file.

    Raises:
        UsageError: the file cannot be read or parsed; names it and says why.
    """
    try:
        content = read_file(path)
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UsageError(f"{path} is UTF-16 text", "save it as UTF-8")
        # Java's files have no byte order mark, but editors may add one
        text = content.removeprefix(codecs.BOM_UTF8).decode("iso-8859-1")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the properties file {path}: {_why(error)}", "name a readable file of Java properties"
        ) from None
    try:
        return parse_properties(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None


def is_reference(value: str) -> bool:
    """Return whether a value is one reference and nothing else."""
    return REFERENCE.fullmatch(value.strip()) is not None


def referenced_files(value: str) -> list[Path]:
    """Return the files that the references in a value name."""
    found = []
    for match in REFERENCE.finditer(value):
        provider, path, key = match["provider"], match["path"] or "", match["key"]
        if provider in {"file", "dir"} and path:
            found.append(Path(path) if provider == "file" else Path(path) / key)
    return found


def resolve(properties: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties with every reference replaced by its value.

    Raises:
        UnreachableError: reason SECRET_UNRESOLVED; names the property and the reference, never a value.
    """
    files: dict[str, dict[str, str]] = {}
    return {key: _resolved(key, value, environ, files) for key, value in properties.items()}


def resolve_value(key: str, value: str, environ: Mapping[str, str] | None = None, judge: Judge | None = None) -> str:
    """Return one value with its references replaced; `key` is only for error messages.

    Raises:
        PolicyError: reason SECRET_UNRESOLVED; the `judge` refuses a reference.
        UnreachableError: reason SECRET_UNRESOLVED; names the key and the reference, never a value.
    """
    return _resolved(key, value, environ, {}, judge)


def literal_secrets(properties: Mapping[str, str]) -> list[str]:
    """Return, sorted, the keys whose value is a plaintext secret.

    A secret is the value of a key named like one (`…password`, `…secret`, `ssl.keystore.key` …), such an option of a
    JAAS line, a private key in PEM anywhere, and a password or such a parameter in a URL. It is plaintext unless the
    whole value is a reference.
    """
    return sorted(key for key, value in properties.items() if _holds_literal_secret(key, value))


def _holds_literal_secret(key: str, value: str) -> bool:
    if not value.strip() or is_reference(value):
        return False
    if key.endswith("sasl.jaas.config"):
        try:
            entries = parse_jaas(value)
        except UsageError:
            return True
        return any(_option_is_literal_secret(entry) for entry in entries)
    if key.endswith(".url"):
        return _has_secret(value)
    return _SECRET_NAME.search(key) is not None or _PRIVATE_KEY.search(value) is not None


def _has_secret(url: str) -> bool:
    """Return whether a URL has a password, or a parameter named like a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "@" in url
    names = [part.partition("=")[0] for part in parts.query.split("&")]
    return parts.password is not None or any(_SECRET_NAME.search(name) for name in names)


def _option_is_literal_secret(entry: JaasEntry) -> bool:
    return any(
        value and not is_reference(value) for name, value in entry.options.items() if _JAAS_SECRET_NAME.search(name)
    )


def _resolved(
    key: str,
    value: str,
    environ: Mapping[str, str] | None,
    files: dict[str, dict[str, str]],
    judge: Judge | None = None,
) -> str:
    def replacement(match: re.Match[str]) -> str:
        if judge is not None:
            judge.reference(key, match)
        try:
            found = _lookup(match["provider"], match["path"] or "", match["key"], environ, files)
            if judge is not None:
                for file in referenced_files(match[0]):
                    judge.secret(key, str(file), _binding(found, files.get(match["path"])))
            return found
        except _UnresolvedError as error:
            raise UnreachableError(
                f"{key}: the reference {match[0]} cannot be resolved: {error}",
                "make the secret available on this machine, or correct the reference",
                Reason.SECRET_UNRESOLVED,
            ) from None

    return REFERENCE.sub(replacement, value)


class _UnresolvedError(Exception):
    """Why a reference has no value; the text never contains a secret."""


def _lookup(
    provider: str, path: str, key: str, environ: Mapping[str, str] | None, files: dict[str, dict[str, str]]
) -> str:
    if provider == "env":
        name = f"{path}:{key}" if path else key
        found = (os.environ if environ is None else environ).get(name)
        if found is None:
            raise _UnresolvedError(f"the environment variable {name} is not set")
        return found
    if provider not in {"file", "dir"}:
        raise _UnresolvedError(f"{provider or 'it'} is not env, file or dir")
    if not path or not key:
        raise _UnresolvedError(f"it must be written ${{{provider}:PATH:KEY}}")
    if provider == "dir":
        if key in {".", ".."} or "/" in key:
            raise _UnresolvedError("KEY must be the name of a file in the folder")
        try:
            return read_file(Path(path) / key).decode("utf-8").removesuffix("\n").removesuffix("\r")
        except (OSError, ValueError) as error:
            raise _UnresolvedError(_why(error)) from None
    if path not in files:
        try:
            files[path] = read_properties(path)
        except UsageError as error:
            raise _UnresolvedError(error.message) from None
    if key not in files[path]:
        raise _UnresolvedError(f"the file has no key {key}")
    return files[path][key]


def _binding(text: str, properties: Mapping[str, str] | None) -> str | None:
    """Return which sources may be sent the secrets of a file, as written there; `text` is what ${dir:…} reads."""
    try:
        return (properties or parse_properties(text.removeprefix("\ufeff"))).get(BINDING)
    except UsageError:
        return None


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return str(error)


def _logical_lines(text: str) -> Iterator[str]:
    line: list[str] = []
    skip_white_space, continued, after_backslash, in_comment = True, False, False, False
    position, end = 0, len(text)
    while position < end:
        character = text[position]
        position += 1
        at_line_end = character in "\n\r"
        if in_comment:
            in_comment = not at_line_end
            continue
        if skip_white_space:
            if character in _WHITE_SPACE or (at_line_end and not continued):
                continue
            skip_white_space = continued = False
        if not line and character in "#!":
            in_comment = skip_white_space = True
            continue
        if not at_line_end:
            line.append(character)
            after_backslash = character == "\\" and not after_backslash
        elif not line:
            skip_white_space = True
        elif after_backslash and position < end:
            line.pop()
            skip_white_space = continued = True
            after_backslash = False
            if character == "\r" and text[position] == "\n":
                position += 1
        else:
            yield "".join(line[:-1] if after_backslash else line)
            line.clear()
            skip_white_space, after_backslash = True, False
    if line:
        yield "".join(line[:-1] if after_backslash else line)


def _split(line: str) -> tuple[str, str]:
    key_end, after_backslash = 0, False
    while key_end < len(line):
        character = line[key_end]
        if not after_backslash and (character in "=:" or character in _WHITE_SPACE):
            break
        after_backslash = character == "\\" and not after_backslash
        key_end += 1
    value_start, separator_seen = key_end, False
    while value_start < len(line):
        character = line[value_start]
        if character in "=:" and not separator_seen:
            separator_seen = True
        elif character not in _WHITE_SPACE:
            break
        value_start += 1
    return line[:key_end], line[value_start:]


def _unescaped(text: str) -> str:
    plain = _ESCAPE.sub(_character, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass") if "\\u" in text else plain


def _character(match: re.Match[str]) -> str:
    digits, escaped = match["digits"], match["escaped"]
    if digits is None:
        return _ESCAPES.get(escaped, escaped)
    if not _FOUR_HEX_DIGITS.fullmatch(digits):
        raise UsageError("\\u is not followed by four hexadecimal digits", "write \\\\u where a plain \\u is meant")
    return chr(int(digits, 16))
