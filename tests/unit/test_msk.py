"""Tokens for Amazon MSK: signed as AWS says, from the properties of aws-msk-iam-auth.

A signature is checked by code of our own that follows AWS's description of Signature Version 4, and that code by the
example which AWS publishes for signing by query parameters.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import sys
import time
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.msk import MskLogin
from kmirror.errors import Reason, UnreachableError, UsageError
from tests.support.token_endpoint import endpoint
from tests.support.wire import closed_port

KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
MODULE = "software.amazon.msk.auth.iam.IAMLoginModule required"
PROPERTIES = {
    "bootstrap.servers": "b-1.orders.abc123.c2.kafka.eu-west-1.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": f"{MODULE};",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
EMPTY = hashlib.sha256(b"").hexdigest()
#: Authenticating Requests: Using Query Parameters, in the API reference of Amazon S3.
PUBLISHED = (
    "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    f"&X-Amz-Credential={KEY}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z"
    "&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
)


def signature_of(url: str, payload_hash: str) -> str:
    """Return the signature that the query of a URL should have."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    signed = {name: value for name, value in query.items() if name not in {"X-Amz-Signature", "User-Agent"}}
    canonical_query = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted(signed.items()))
    canonical = ["GET", parts.path, canonical_query, f"host:{parts.hostname}", "", "host", payload_hash]
    _, *scope = query["X-Amz-Credential"].split("/")
    hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], "/".join(scope), hashed])
    key = f"AWS4{SECRET}".encode()
    for step in scope:
        key = hmac.digest(key, step.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def test_the_published_example_is_signed_as_published() -> None:
    assert signature_of(PUBLISHED, "UNSIGNED-PAYLOAD") == dict(parse_qsl(PUBLISHED))["X-Amz-Signature"]


@pytest.fixture(autouse=True)
def _no_aws_but_this(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this machine's own set-up counts, and nothing outside is asked."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text("[profile dr]\nregion = us-east-2\n")
    (tmp_path / "credentials").write_text(f"[dr]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def login_of(**changes: str) -> MskLogin:
    config = client_config({**PROPERTIES, **changes}, {})
    assert config.sasl_mechanism == "OAUTHBEARER"
    assert isinstance(config.tokens, MskLogin)
    return config.tokens


@pytest.mark.parametrize("session_token", [None, "a/session+token="])
def test_a_token_is_a_signed_url(session_token: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    if session_token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", session_token)
    before = time.time()
    token = login_of().fetch(5)
    assert before + 900 <= token.expires_at <= time.time() + 900
    assert "=" not in token.value
    url = base64.urlsafe_b64decode(token.value + "=" * (-len(token.value) % 4)).decode()
    parts, query = urlsplit(url), dict(parse_qsl(urlsplit(url).query))
    assert (parts.scheme, parts.netloc, parts.path) == ("https", "kafka.eu-west-1.amazonaws.com", "/")
    assert (query["Action"], query["User-Agent"], query["X-Amz-Expires"]) == ("kafka-cluster:Connect", "kmirror", "900")
    assert query["X-Amz-Credential"].split("/")[2:] == ["eu-west-1", "kafka-cluster", "aws4_request"]
    assert query.get("X-Amz-Security-Token") == session_token
    assert query["X-Amz-Signature"] == signature_of(url, EMPTY)
    assert SECRET not in url


def test_the_options_of_the_java_library() -> None:
    options = 'awsProfileName="dr" awsRoleArn="arn:aws:iam::1:role/r" awsRoleSessionName="s" awsStsRegion="eu-west-3"'
    expected = MskLogin("eu-west-1", "dr", "arn:aws:iam::1:role/r", "s", "eu-west-3")
    assert login_of(**{"sasl.jaas.config": f"{MODULE} {options};"}) == expected
    by_token = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required awsProfileName=dr;"
        ),
        "sasl.login.callback.handler.class": "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler",
    }
    assert login_of(**by_token) == MskLogin("eu-west-1", "dr")
    with pytest.raises(UsageError, match="option awsRoleExternalId is not supported"):
        login_of(**{"sasl.jaas.config": f"{MODULE} awsRoleExternalId=1;"})


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("boot-x.c1.kafka-serverless.us-east-1.amazonaws.com", "us-east-1"),
        ("b-1.o.a.c2.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("kafka.example.com", ""),
    ],
)
def test_the_region_is_in_the_names_of_brokers(host: str, region: str) -> None:
    assert login_of(**{"bootstrap.servers": f"{host}:9098"}).region == region


def test_a_profile_has_credentials_and_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    def credential(login: MskLogin) -> str:
        value = login.fetch(5).value
        url = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
        assert dict(parse_qsl(url))["X-Amz-Signature"] == signature_of(url, EMPTY)
        return dict(parse_qsl(urlsplit(url).query))["X-Amz-Credential"].split("/")[2]

    assert credential(MskLogin(profile="dr")) == "us-east-2"
    monkeypatch.setenv("AWS_REGION", "us-west-1")
    assert credential(MskLogin(profile="dr")) == "us-west-1"


def test_a_role_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ROLE</AccessKeyId>"
        f"<SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>t</SessionToken>"
        "<Expiration>2030-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
    )
    refusal = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>"
    login = MskLogin("eu-west-1", "dr", "arn:aws:iam::1:role/r", "session")
    with endpoint((200, found), (403, refusal)) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        value = login.fetch(5).value
        url = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
        query = dict(parse_qsl(urlsplit(url).query))
        assert (query["X-Amz-Credential"].split("/")[0], query["X-Amz-Security-Token"]) == ("ROLE", "t")
        assert query["X-Amz-Signature"] == signature_of(url, EMPTY)
        asked = dict(parse_qsl(sts.asked[0][1]))
        assert (asked["RoleArn"], asked["RoleSessionName"]) == ("arn:aws:iam::1:role/r", "session")
        with pytest.raises(UnreachableError, match=r"no AWS credentials for arn:.*AccessDenied.*not you") as caught:
            login.fetch(5)
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(UnreachableError, match="cannot get AWS credentials for arn:") as caught:
        login.fetch(5)
    assert caught.value.reason is None


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for login, message in (
        (MskLogin("eu-west-1"), "no AWS credentials found on "),
        (MskLogin(), "the AWS region of the cluster is unknown"),
        (MskLogin("eu-west-1", profile="other"), "no AWS credentials for AWS profile other: "),
    ):
        with pytest.raises(UnreachableError, match=message) as caught:
            login.fetch(1)
        assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(UnreachableError, match="need botocore, which is not installed on ") as caught:
        MskLogin().fetch(1)
    assert caught.value.hint == "run there: pip install botocore"
