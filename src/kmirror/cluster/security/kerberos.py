"""Kerberos logins (SASL mechanism GSSAPI, RFC 4752) with the system's own library, MIT's libgssapi_krb5.

There is no wheel of a binding to it for Linux, and a compiler cannot be expected on every worker: the functions that a
client needs are declared here. The library finds KDCs as all programs of the system do (krb5.conf), keeps tickets in
memory, and renews them from the keytab in time.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

from kmirror.errors import Reason, UnreachableError

MECHANISM = "GSSAPI"

_LIBRARY = "libgssapi_krb5.so.2"
_MUTUAL, _REPLAY, _SEQUENCE, _INTEGRITY = 2, 4, 8, 32
_INITIATE = 1
_CONTINUE_NEEDED = 1
_GSS_CODE, _MECH_CODE = 1, 2
#: No KDC answers: KRB5_KDC_UNREACH and KRB5_REALM_CANT_RESOLVE, as unsigned numbers.
_TRANSIENT = {code % (1 << 32) for code in (-1765328228, -1765328164)}
#: Object ids in DER: Kerberos 5, its principal names (RFC 1964), and names of services on hosts (RFC 2743).
_KERBEROS = bytes.fromhex("2a864886f712010202")
_PRINCIPAL_NAME = bytes.fromhex("2a864886f71201020201")
_SERVICE_NAME = bytes.fromhex("2a864886f71201020104")
#: The security layers that a message offers: none after the login (RFC 4752, section 3.3).
_NO_LAYER = 1


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """Who logs in, to which service; None for the defaults of the system's Kerberos."""

    service_name: str
    principal: str | None = None
    keytab: str | None = None
    ticket_cache: str | None = None

    def __str__(self) -> str:
        return self.principal or "the owner of the ticket cache"

    def credential_store(self) -> dict[str, str]:
        """Return where the library finds tickets and keeps them; empty for the system's defaults."""
        if self.keytab:
            # a ticket cache for each identity: mirrors of one process may have different ones
            digest = sha256(f"{self.principal}\0{self.keytab}".encode()).hexdigest()[:16]
            return {"client_keytab": f"FILE:{self.keytab}", "ccache": f"MEMORY:kmirror-{digest}"}
        return {"ccache": f"FILE:{self.ticket_cache}"} if self.ticket_cache else {}


class _Buffer(ctypes.Structure):
    _fields_ = (("length", c_size_t), ("value", c_void_p))


class _Oid(ctypes.Structure):
    _fields_ = (("length", c_uint32), ("elements", c_char_p))


class _StoreEntry(ctypes.Structure):
    _fields_ = (("key", c_char_p), ("value", c_char_p))


class _Store(ctypes.Structure):
    _fields_ = (("count", c_uint32), ("elements", POINTER(_StoreEntry)))


class KerberosClient:
    """The client side of one login to a host."""

    def __init__(self, login: KerberosLogin, host: str) -> None:
        self._library = _library()
        self._description = f"{login} to {login.service_name}/{host}"
        self._context = c_void_p()
        self._credential = c_void_p()
        self._target = c_void_p()
        self._is_established = self._is_last = self._is_done = False
        self._next = b""
        try:
            self._target = self._name(f"{login.service_name}@{host}", _SERVICE_NAME)
            self._credential = self._acquired(login)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the library's resources."""
        minor = c_uint32()
        if self._context:
            self._library.gss_delete_sec_context(byref(minor), byref(self._context), None)
        if self._credential:
            self._library.gss_release_cred(byref(minor), byref(self._credential))
        if self._target:
            self._library.gss_release_name(byref(minor), byref(self._target))

    def is_done(self) -> bool:
        """Return whether the last message has been sent and answered."""
        return self._is_done

    def auth_bytes(self) -> bytes:
        """Return the next message to the broker."""
        if not self._context:
            self._next = self._step(b"")
        return self._next

    def receive(self, answer: bytes) -> None:
        """Handle the broker's answer."""
        if self._is_last:
            self._is_done = True
        elif not self._is_established:
            self._next = self._step(answer)
        else:
            offered = self._unwrapped(answer)
            if len(offered) != 4 or not offered[0] & _NO_LAYER:
                raise self._refused("the broker requires a security layer, which Kafka does not have")
            self._next = self._wrapped(bytes([_NO_LAYER, 0, 0, 0]))
            self._is_last = True

    def _name(self, text: str, kind: bytes) -> c_void_p:
        minor, name = c_uint32(), c_void_p()
        given, oid = _buffer(text.encode()), _oid(kind)
        self._require(self._library.gss_import_name(byref(minor), byref(given), byref(oid), byref(name)), minor)
        return name

    def _acquired(self, login: KerberosLogin) -> c_void_p:
        entries = login.credential_store()
        if login.keytab:
            self._require_readable(login.keytab)
        array = (_StoreEntry * len(entries))(*(_StoreEntry(k.encode(), v.encode()) for k, v in entries.items()))
        store = _Store(len(entries), array)
        minor, credential = c_uint32(), c_void_p()
        name = self._name(login.principal, _PRINCIPAL_NAME) if login.principal else c_void_p()
        try:
            acquire = self._library.gss_acquire_cred_from
            done = acquire(byref(minor), name, 0, None, _INITIATE, byref(store), byref(credential), None, None)
            self._require(done, minor)
        finally:
            if name:
                self._library.gss_release_name(byref(c_uint32()), byref(name))
        return credential

    def _require_readable(self, keytab: str) -> None:
        """Raise UnreachableError unless it can be opened; the library would say only that there is no ticket."""
        try:
            with open(keytab, "rb"):
                pass
        except OSError as error:
            raise self._refused(f"{keytab}: {error.strerror}") from None

    def _step(self, token: bytes) -> bytes:
        minor, output, given, mechanism = c_uint32(), _Buffer(), _buffer(token), _oid(_KERBEROS)
        flags = _MUTUAL | _REPLAY | _SEQUENCE | _INTEGRITY
        done = self._library.gss_init_sec_context(
            *(byref(minor), self._credential, byref(self._context), self._target, byref(mechanism), flags, 0, None),
            *(byref(given), None, byref(output), None, None),
        )
        self._require(done, minor)
        self._is_established = done != _CONTINUE_NEEDED
        return self._taken(output)

    def _unwrapped(self, message: bytes) -> bytes:
        minor, output, given = c_uint32(), _Buffer(), _buffer(message)
        done = self._library.gss_unwrap(byref(minor), self._context, byref(given), byref(output), None, None)
        self._require(done, minor)
        return self._taken(output)

    def _wrapped(self, message: bytes) -> bytes:
        minor, output, given = c_uint32(), _Buffer(), _buffer(message)
        done = self._library.gss_wrap(byref(minor), self._context, 0, 0, byref(given), None, byref(output))
        self._require(done, minor)
        return self._taken(output)

    def _taken(self, output: _Buffer) -> bytes:
        data = ctypes.string_at(output.value, output.length) if output.length else b""
        self._library.gss_release_buffer(byref(c_uint32()), byref(output))
        return data

    def _require(self, done: int, minor: c_uint32) -> None:
        """Raise UnreachableError unless a call has succeeded."""
        if done in (0, _CONTINUE_NEEDED):
            return
        reason = self._reason(minor.value, _MECH_CODE) if minor.value else self._reason(done, _GSS_CODE)
        if minor.value in _TRANSIENT:
            raise UnreachableError(
                f"no Kerberos ticket for {self._description}: {reason}", "check the KDCs of the realm in krb5.conf"
            )
        raise self._refused(reason)

    def _refused(self, reason: str) -> UnreachableError:
        return UnreachableError(
            f"no Kerberos login for {self._description}: {reason}",
            "check principal and keytab (kinit -kt KEYTAB PRINCIPAL), sasl.kerberos.service.name, and the clocks",
            Reason.AUTHENTICATION_FAILED,
        )

    def _reason(self, code: int, kind: int) -> str:
        minor, position, output, mechanism = c_uint32(), c_uint32(), _Buffer(), _oid(_KERBEROS)
        display = self._library.gss_display_status
        done = display(byref(minor), code, kind, byref(mechanism), byref(position), byref(output))
        return self._taken(output).decode("utf-8", "replace") if done == 0 else f"error {code}"


def require_library() -> None:
    """Raise UnreachableError, reason AUTHENTICATION_FAILED, if the system's library is not installed."""
    _library()


@cache
def _library() -> Any:
    """Return the system's library.

    Raises:
        UnreachableError: reason AUTHENTICATION_FAILED; it is not installed.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise UnreachableError(
            f"Kerberos logins need {_LIBRARY}, which this machine does not have",
            "install it: apt-get install libgssapi-krb5-2, or dnf install krb5-libs",
            Reason.AUTHENTICATION_FAILED,
        ) from None
    number, pointer = POINTER(c_uint32), c_void_p
    buffer, oid, place = POINTER(_Buffer), POINTER(_Oid), POINTER(c_void_p)
    for name, arguments in {
        "gss_import_name": (number, buffer, oid, place),
        "gss_acquire_cred_from": (number, pointer, c_uint32, pointer, c_int, POINTER(_Store), place, pointer, number),
        "gss_init_sec_context": (
            *(number, pointer, place, pointer, oid, c_uint32, c_uint32, pointer),
            *(buffer, pointer, buffer, number, number),
        ),
        "gss_unwrap": (number, pointer, buffer, buffer, POINTER(c_int), number),
        "gss_wrap": (number, pointer, c_int, c_uint32, buffer, POINTER(c_int), buffer),
        "gss_display_status": (number, c_uint32, c_int, oid, number, buffer),
        "gss_release_buffer": (number, buffer),
        "gss_release_name": (number, place),
        "gss_release_cred": (number, place),
        "gss_delete_sec_context": (number, place, buffer),
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_uint32
    return library


def _buffer(data: bytes) -> _Buffer:
    """Return bytes in the library's type; it only reads them."""
    return _Buffer(len(data), ctypes.cast(c_char_p(data), c_void_p))


def _oid(der: bytes) -> _Oid:
    return _Oid(len(der), der)
