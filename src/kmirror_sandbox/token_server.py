"""The token endpoint of a sandbox cluster whose clients log in with OAUTHBEARER.

It is mock-oauth2-server, a stand-in for an identity provider: it issues a token to any client under the client's own
name, without checking a secret. Brokers fetch its keys and check signature, issuer, audience and time of every token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from kmirror_sandbox.broker_config import TOKEN_AUDIENCE, TOKEN_ISSUER
from kmirror_sandbox.jars import token_server_jars
from kmirror_sandbox.ports import LOOPBACK
from kmirror_sandbox.java_server import JavaServer
from kmirror_sandbox.cluster_spec import ClusterSpec, TokenSpec

_MAIN_CLASS = "no.nav.security.mock.oauth2.StandaloneMockOAuth2ServerKt"
_OPTIONS = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class TokenServer(JavaServer):
    """The token endpoint of one cluster."""

    def __init__(self, cluster: ClusterSpec, tokens: TokenSpec, cluster_directory: Path) -> None:
        super().__init__(cluster, cluster_directory / "tokens", f"token endpoint of cluster {cluster.name}")
        self._tokens = tokens

    @property
    def port(self) -> int:
        """Return the port to which clients and brokers connect."""
        return self._tokens.port

    def start(self, java: Path, environ: Mapping[str, str]) -> None:
        """Start it without waiting until it answers."""
        claims = {"sub": "${clientId}", "aud": [TOKEN_AUDIENCE]}
        every_client = {"requestParam": "grant_type", "match": "*", "claims": claims}
        answers = {"issuerId": TOKEN_ISSUER, "tokenExpiry": self._tokens.seconds, "requestMappings": [every_client]}
        settings = {
            "JSON_CONFIG": json.dumps({"tokenCallbacks": [answers]}),
            "SERVER_HOSTNAME": LOOPBACK,
            "SERVER_PORT": str(self.port),
        }
        self.launch(java, token_server_jars(environ), {**environ, **settings}, _OPTIONS, [_MAIN_CLASS])
