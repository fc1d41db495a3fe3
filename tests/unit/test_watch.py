"""What librdkafka reports of a login: a refusal ends any wait, trouble that passes does not."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kmirror.errors import Reason, UnreachableError
from kmirror.state.librdkafka import ErrorWatch

REFUSED = "sasl_ssl://b:1/1: SASL authentication error: Authentication failed during authentication (after 5ms)"
NO_TOKEN = (
    "Failed to acquire SASL OAUTHBEARER token: cannot get a token for client a from http://idp: Connection refused",
    "b:1/1: OAUTHBEARER cannot log in because there is no token available; last error: cannot get a token",
    "b:1/1: Failed to initialize SASL authentication: SASL handshake failed (start (-1)): SASL(-1): generic failure: "
    "GSSAPI Error: Unspecified GSS failure.  Minor code may provide more information (Cannot contact any KDC for realm "
    "'EXAMPLE.COM') (after 0ms in state AUTH_REQ)",
)
BROKEN_OFF = (
    "b:1/1: SASL OAUTHBEARER mechanism handshake failed: Local: Broker transport failure: broker's supported (n/a)",
    "b:1/1: SASL OAUTHBEARER mechanism handshake failed: Broker: Request not valid in current SASL state: (after 4ms)",
    "b:1/1: Failed to initialize SASL authentication: SASL handshake failed (start (-1)): SASL(-1): generic failure: "
    "GSSAPI Error: Unspecified GSS failure.  Minor code may provide more information (Ticket expired) (after 0ms)",
)


def is_hopeless(message: str, *, reached: bool) -> bool:
    watch = ErrorWatch()
    watch.reached = reached
    watch.on_error(KafkaError(KafkaError._AUTHENTICATION, message))
    if watch._is_transient(message):
        watch.raise_if_hopeless()
        assert message in watch.no_answer("reading").message
        return False
    with pytest.raises(UnreachableError) as caught:
        watch.raise_if_hopeless()
    assert caught.value.reason is Reason.AUTHENTICATION_FAILED
    assert message in caught.value.message
    return True


@pytest.mark.parametrize("reached", [False, True])
def test_a_refusal_is_final_and_a_missing_token_is_waited_for(reached: bool) -> None:
    assert is_hopeless(REFUSED, reached=reached)
    assert not any(is_hopeless(message, reached=reached) for message in NO_TOKEN)


def test_a_login_that_broke_off_is_repeated_where_one_has_worked_before() -> None:
    assert [is_hopeless(message, reached=False) for message in BROKEN_OFF] == [True, True, True]
    assert [is_hopeless(message, reached=True) for message in BROKEN_OFF] == [False, False, False]
