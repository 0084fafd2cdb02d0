"""grpc-go's interoperability client against gRPC's test service behind the server's own HTTP layers.

The service is `rust/http/examples/interop`: unary calls go through our codec, streams through tonic's, both
through our accept loop, connection and limits.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import components
import pytest
from waiting import PATIENCE

CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "pick_first_unary",
    "rpc_soak",
    "channel_soak",
)
# The client's other cases are not for this server: compute_engine_creds, service_account_creds,
# jwt_token_creds, per_rpc_creds, oauth2_auth_token, google_default_credentials and
# compute_engine_channel_credentials sign in at Google; orca_per_rpc and orca_oob read load reports, which the
# server gives in its metrics instead.


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the test service."""
    program = components.require_program("interop-server")
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("case", CASES)
def test_every_interop_case_passes(address: str, case: str) -> None:
    client = components.require_program("grpc-interop-client")
    host, port = address.rsplit(":", 1)
    done = subprocess.run(
        [client, "--server_host", host, "--server_port", port, "--test_case", case],
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
