"""A TLS handshake in memory, with the files of `tests/support/tls.py` in the current folder."""

from __future__ import annotations

import ssl

from kmirror.cluster.security.client_config import ClientConfig


def handshake(
    config: ClientConfig, server_hostname: str = "localhost", client_auth: bool = False, server: str = "server.pem"
) -> str | None:
    """Let a client and a server shake hands in memory; return the name in the client's certificate, None for none."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(server)
    if client_auth:
        server_context.load_verify_locations("root.pem")
        server_context.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server_context.wrap_bio(to_server, to_client, server_side=True)
    client_context = config.ssl_context()
    assert client_context is not None
    client = client_context.wrap_bio(to_client, to_server, server_hostname=server_hostname)
    for _ in range(3):
        for side in (client, accepting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = accepting.getpeercert()
    if not certificate:
        return None
    subject = certificate["subject"]
    assert isinstance(subject, tuple)
    return str(subject[0][0][1])
