"""IAM logins to Amazon MSK: tokens that botocore signs with the AWS credentials of this machine.

Java's aws-msk-iam-auth has its own SASL mechanism, AWS_MSK_IAM. The same brokers accept OAUTHBEARER at the same port:
the token is the URL of a request to kafka-cluster:Connect, signed with AWS Signature Version 4 in its query and encoded
as base64url without padding. The properties are those of the Java library.
"""

from __future__ import annotations

import base64
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kmirror.cluster.security.tokens import Token
from kmirror.cluster.security.trust import MSK_HOST, TrustPolicy
from kmirror.errors import PolicyError, Reason, UnreachableError, UsageError

MECHANISM = "AWS_MSK_IAM"
LOGIN_HANDLER = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
CLIENT_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"

_TOKEN_SECONDS = 900
_SESSION_NAME = "kmirror"
_OPTIONS = frozenset({"awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsStsRegion", "awsDebugCreds"})


@dataclass(frozen=True, slots=True)
class MskLogin:
    """The AWS credentials that sign, and the region of the cluster; "" for this machine's defaults."""

    region: str = ""
    profile: str = ""
    role_arn: str = ""
    role_session_name: str = _SESSION_NAME
    sts_region: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    refresh_part: float = 0.8
    #: Which brokers may be sent a token; None for any.
    policy: TrustPolicy | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.role_arn or (f"AWS profile {self.profile}" if self.profile else "this machine's AWS credentials")

    def refuse_broker(self, address: str) -> None:
        """Refuse a broker that must not be sent a token; another broker may have advertised it.

        Raises:
            UnreachableError: reason AUTHENTICATION_FAILED.
        """
        host, _, port = address.rpartition(":")
        try:
            if self.policy is not None:
                self.policy.refuse_aws([(host.strip("[]"), int(port))])
        except PolicyError as error:
            raise _refused(error.message, error.hint or "") from None

    def fetch(self, timeout: float) -> Token:
        """Sign a token; AWS is called only if the credentials come from there.

        Raises:
            UnreachableError: reason AUTHENTICATION_FAILED if there are no credentials, or botocore is missing.
        """
        try:
            from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
            from botocore.exceptions import ConnectionError as AwsConnectionError
            from botocore.session import Session
        except ImportError:
            raise _refused(
                f"IAM logins need botocore, which is not installed on {socket.gethostname()}",
                "run there: pip install botocore",
            ) from None
        try:
            session = Session(profile=self.profile or None)
            region = self.region or os.environ.get("AWS_REGION") or session.get_config_variable("region")
            if not region:
                raise _refused(
                    "the AWS region of the cluster is unknown: no broker's name contains it",
                    "set AWS_REGION, or region in the profile",
                )
            credentials = session.get_credentials()
            if credentials is None:
                raise _refused(
                    f"no AWS credentials found on {socket.gethostname()}",
                    "give it a role, or set awsProfileName in sasl.jaas.config or AWS_* in the environment",
                )
            if self.role_arn:
                credentials = self._assumed(session, region, timeout)
            return signed_token(credentials.get_frozen_credentials(), region)
        except (HTTPClientError, AwsConnectionError) as error:
            raise UnreachableError(
                f"cannot get AWS credentials for {self}: {error}",
                "check that this machine can reach AWS: STS, or the service that provides its credentials",
            ) from None
        except (BotoCoreError, ClientError) as error:
            raise _refused(
                f"no AWS credentials for {self}: {error}", "check them: aws sts get-caller-identity"
            ) from None

    def _assumed(self, session: Any, region: str, timeout: float) -> Any:
        from botocore.config import Config
        from botocore.credentials import Credentials

        limits = Config(connect_timeout=timeout, read_timeout=timeout, retries={"total_max_attempts": 1})
        sts = session.create_client("sts", region_name=self.sts_region or region, config=limits)
        found = sts.assume_role(RoleArn=self.role_arn, RoleSessionName=self.role_session_name)["Credentials"]
        return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])


def msk_login(options: dict[str, str], hosts: Iterable[str], refresh_part: float) -> MskLogin:
    """Return the login to a cluster with these brokers, from the options of IAMLoginModule.

    Raises:
        UsageError: an option is unknown here, and would affect the login.
    """
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise UsageError(
            f"sasl.jaas.config: option {unknown[0]} is not supported",
            f"kmirror knows {', '.join(sorted(_OPTIONS))}; others can be set in an AWS profile",
        )
    regions = {found["region"] for host in hosts if (found := MSK_HOST.search(host))}
    return MskLogin(
        region=regions.pop() if len(regions) == 1 else "",
        profile=options.get("awsProfileName", ""),
        role_arn=options.get("awsRoleArn", ""),
        role_session_name=options.get("awsRoleSessionName", "") or _SESSION_NAME,
        sts_region=options.get("awsStsRegion", ""),
        refresh_part=refresh_part,
    )


def signed_token(credentials: Any, region: str) -> Token:
    """Return a token signed with botocore's `credentials`."""
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest

    url = f"https://kafka.{region}.amazonaws.com/"
    request = AWSRequest(method="GET", url=url, params={"Action": "kafka-cluster:Connect"})
    expires_at = time.time() + _TOKEN_SECONDS
    SigV4QueryAuth(credentials, "kafka-cluster", region, expires=_TOKEN_SECONDS).add_auth(request)
    request.params = {"User-Agent": "kmirror"}  # not signed
    return Token(base64.urlsafe_b64encode(request.prepare().url.encode()).decode().rstrip("="), expires_at)


def _refused(message: str, hint: str) -> UnreachableError:
    return UnreachableError(message, hint, Reason.AUTHENTICATION_FAILED)
