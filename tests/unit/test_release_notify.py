"""Tests of notifications that are sent to real receivers on this machine."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import components
import pytest
from fakes import RecordedEvents
from receivers import HttpReceiver, Received, SmtpReceiver
from sqlalchemy import select, update
from standardwebhooks import Webhook, WebhookVerificationError

from scorer.events import EventLog
from scorer.release.access import Access
from scorer.release.audit import Audit
from scorer.release.errors import InvalidError, NotAllowedError, NotFoundError
from scorer.release.model import PLATFORM, Actor, Role, Severity
from scorer.release.notify import Notifications, sending, targets
from scorer.release.notify.addresses import Destinations
from scorer.release.notify.connector import only_to
from scorer.release.notify.outbox import ATTEMPTS, LEASE, pause
from scorer.release.store import Store, tables

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
SECRET = "a secret of sufficient length"
OWNER = Actor("olga", {"checkout": Role.OWNER})
WAIT = 30.0
LOOPBACK = Destinations((ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")))
LOG = RecordedEvents()
PUBLIC = Destinations()


class Clock:
    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notifications(store: Store, clock: Clock) -> Iterator[Notifications]:
    access = Access(store, now=clock)
    access.create_project(PLATFORM, "checkout", "Checkout")
    access.create_project(PLATFORM, "payouts", "Payouts")
    notifications = Notifications(store, access, now=clock, destinations=LOOPBACK, events=EventLog(LOG))
    yield notifications
    notifications.close()


@pytest.fixture
def http() -> Iterator[HttpReceiver]:
    with HttpReceiver() as receiver:
        yield receiver


def resolving(names: list[str]) -> Callable[..., list[Any]]:
    """Return a resolver in which every name has the addresses that are in the list at that time."""

    def getaddrinfo(host: str, port: Any, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, int(port or 0))) for each in names]

    return getaddrinfo


def hook(notifications: Notifications, http: HttpReceiver, **more: object) -> int:
    url = f"http://127.0.0.1:{http.port}/hook"
    return notifications.add_channel(OWNER, "checkout", url, secret=SECRET, **more).id  # type: ignore[arg-type]


def notify(
    store: Store, notifications: Notifications, subject: str = "cr-000001 passed", **more: object
) -> None:
    with store.write() as connection:
        notifications.tell(
            connection,
            "checkout",
            more.pop("severity", Severity.INFO),
            subject,
            "All gates.",
            **more,  # type: ignore[arg-type]
        )


def states(notifications: Notifications) -> list[tuple[str, str, int]]:
    return [(each.subject, each.state, each.attempts) for each in notifications.deliveries(OWNER, "checkout")]


# === webhooks ===


def test_a_webhook_is_signed(store: Store, notifications: Notifications, http: HttpReceiver) -> None:
    hook(notifications, http)
    notify(store, notifications, checkpoint="fraud.checkout", payload={"change": "cr-000001", "share": 0.1})
    assert notifications.deliver(WAIT) == 1
    [request] = http.received
    headers = dict(request.headers)
    Webhook(SECRET.encode()).verify(request.body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(b"another secret").verify(request.body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET.encode()).verify(request.body.replace(b"0.1", b"0.2"), headers)
    document = json.loads(request.body)
    assert document.pop("id") == request.headers["webhook-id"]
    assert document == {
        "at": "2026-03-01T12:00:00Z",
        "project": "checkout",
        "checkpoint": "fraud.checkout",
        "severity": "info",
        "subject": "cr-000001 passed",
        "body": "All gates.",
        "payload": {"change": "cr-000001", "share": 0.1},
    }
    assert request.headers["Content-Type"] == "application/json"
    assert states(notifications) == [("cr-000001 passed", "sent", 1)]
    assert notifications.deliver(WAIT) == 0
    assert len(http.received) == 1


def test_the_signature_follows_the_specification(
    store: Store, notifications: Notifications, http: HttpReceiver
) -> None:
    """Standard Webhooks defines HMAC-SHA256 of `<id>.<timestamp>.<body>`, in base64, after the version."""
    hook(notifications, http)
    notify(store, notifications)
    notifications.deliver(WAIT)
    [request] = http.received
    signed = (
        f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    )
    code = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{code}"
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < 60


def test_a_secret_in_base64_is_decoded(
    store: Store, notifications: Notifications, http: HttpReceiver
) -> None:
    secret = "whsec_" + base64.b64encode(b"twenty-four random bytes").decode()
    url = f"http://127.0.0.1:{http.port}/hook"
    notifications.add_channel(OWNER, "checkout", url, secret=secret)
    notify(store, notifications)
    notifications.deliver(WAIT)
    [request] = http.received
    Webhook(secret).verify(request.body, dict(request.headers))
    with pytest.raises(InvalidError, match="must continue in base64"):
        notifications.add_channel(OWNER, "checkout", url, secret="whsec_not base64 at all")


# === at least once ===


def test_a_refused_message_is_retried_and_finally_abandoned(
    store: Store, notifications: Notifications, http: HttpReceiver, clock: Clock
) -> None:
    hook(notifications, http)
    http.answer = lambda _: 503
    notify(store, notifications)
    for attempt in range(1, ATTEMPTS + 1):
        assert notifications.deliver(WAIT) == 0
        assert len(http.received) == attempt
        if attempt < ATTEMPTS:
            assert states(notifications) == [("cr-000001 passed", "waiting", attempt)]
            clock.at += pause(attempt) - timedelta(microseconds=1)
            notifications.deliver(WAIT)
            assert len(http.received) == attempt  # not before the retry is due
            clock.at += timedelta(microseconds=1)
    [delivery] = notifications.deliveries(OWNER, "checkout")
    assert (delivery.state, delivery.error) == ("given up", sending.NOT_ACCEPTED)
    assert notifications.failed == ATTEMPTS
    clock.at += timedelta(days=1)
    notifications.deliver(WAIT)
    assert len(http.received) == ATTEMPTS
    assert len({result.headers["webhook-id"] for result in http.received}) == 1
    assert len({result.body for result in http.received}) == 1


def test_a_message_is_sent_when_its_receiver_recovers(
    store: Store, notifications: Notifications, http: HttpReceiver, clock: Clock
) -> None:
    hook(notifications, http)
    http.answer = lambda _: 500
    notify(store, notifications)
    notifications.deliver(WAIT)
    http.answer = lambda _: 200
    clock.at += pause(1)
    assert notifications.deliver(WAIT) == 1
    [delivery] = notifications.deliveries(OWNER, "checkout")
    assert (delivery.state, delivery.attempts, delivery.error) == ("sent", 2, "")


def test_a_rolled_back_transaction_sends_no_message(
    store: Store, notifications: Notifications, http: HttpReceiver
) -> None:
    hook(notifications, http)
    with pytest.raises(ZeroDivisionError), store.write() as connection:
        notifications.tell(connection, "checkout", Severity.INFO, "never", "")
        _ = 1 / 0
    assert notifications.deliver(WAIT) == 0
    assert http.received == []


def test_a_message_is_sent_once_per_key(
    store: Store, notifications: Notifications, http: HttpReceiver
) -> None:
    hook(notifications, http)
    for _ in range(2):
        notify(store, notifications, key="cr-000001:deploying:3")
    notify(store, notifications, key="cr-000001:deploying:4")
    notify(store, notifications)
    notify(store, notifications)
    assert notifications.deliver(WAIT) == 4


def test_several_processes_send_every_message_once(
    store: Store, database_url: str, notifications: Notifications, http: HttpReceiver, clock: Clock
) -> None:
    hook(notifications, http)
    for number in range(20):
        notify(store, notifications, f"message {number}")
    other_store = Store(database_url)
    others = [notifications, Notifications(other_store, now=clock, destinations=LOOPBACK)]
    threads = [
        threading.Thread(target=lambda each=each: [each.deliver(WAIT) for _ in range(8)])  # type: ignore[misc]
        for each in others
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    subjects = [json.loads(result.body)["subject"] for result in http.received]
    assert sorted(subjects) == sorted(f"message {number}" for number in range(20))
    others[1].close()
    other_store.close()


def test_the_claim_of_a_killed_process_expires(
    store: Store, notifications: Notifications, http: HttpReceiver, clock: Clock
) -> None:
    hook(notifications, http)
    notify(store, notifications)
    with store.write() as connection:  # the state that a process leaves when it is killed while it sends
        connection.execute(
            update(tables.outbox).values(claimed_by="somebody gone", claimed_until=clock.at + LEASE)
        )
    assert notifications.deliver(WAIT) == 0
    clock.at += LEASE
    assert notifications.deliver(WAIT) == 1


def test_a_clock_that_is_set_back_delays_no_message(
    store: Store, notifications: Notifications, http: HttpReceiver, clock: Clock
) -> None:
    hook(notifications, http)
    clock.at += timedelta(days=365)
    notify(store, notifications)
    clock.at -= timedelta(days=365)
    assert notifications.deliver(WAIT) == 1


def test_a_slow_receiver_delays_neither_the_runner_nor_other_channels(
    store: Store, notifications: Notifications, http: HttpReceiver
) -> None:
    may_go, slow_has_it = threading.Event(), threading.Event()

    def answer(_: Received) -> int:
        slow_has_it.set()
        may_go.wait(WAIT)
        return 204

    with HttpReceiver(answer) as slow:
        hook(notifications, slow)
        hook(notifications, http)
        notify(store, notifications)
        notifications.deliver(0.0)  # returns while one of the receivers has not responded
        assert slow_has_it.wait(WAIT)
        notifications.deliver(0.0)  # and sends neither of them again
        may_go.set()
        notifications.close()
        assert [len(each.received) for each in (slow, http)] == [1, 1]
    assert {state for _, state, _ in states(notifications)} == {"sent"}


def test_a_receiver_that_never_ends_its_response_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver responds byte by byte, so that no single wait is too long."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection:
            while not stop.wait(0.02):
                try:
                    connection.sendall(b"H")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    message = sending.Message("dlv_1", "s", "b", Severity.INFO, b"{}")
    with pytest.raises(sending.NotSentError):
        sending.send(
            f"http://127.0.0.1:{listening.getsockname()[1]}/", SECRET, message, LOOPBACK, seconds=0.3
        )
    stop.set()
    thread.join()
    listening.close()


def test_an_error_is_stored_in_one_line_without_secrets(store: Store, notifications: Notifications) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    notifications.add_channel(OWNER, "checkout", f"json://user:hunter2hunter2@127.0.0.1:{port}/tokentoken")
    notifications.add_channel(
        OWNER, "checkout", f"http://127.0.0.1:{port}/services/abcdefghijklmnop", secret=SECRET
    )
    notify(store, notifications)
    notifications.deliver(WAIT)
    assert {each.error for each in notifications.deliveries(OWNER, "checkout")} == {sending.NOT_ACCEPTED}
    errors = sorted(line["error"] for line in LOG.named("message_not_sent")[-2:])
    assert all(errors)
    assert not [each for each in errors if "\n" in each or "hunter2" in each or "tokentoken" in each]
    assert any(f"127.0.0.1:{port} does not answer" in each for each in errors)


def test_a_redirect_is_not_followed(store: Store, notifications: Notifications, http: HttpReceiver) -> None:
    with HttpReceiver(lambda _: 307, location=f"http://127.0.0.1:{http.port}/") as redirecting:
        hook(notifications, redirecting)
        notifications.add_channel(OWNER, "checkout", f"json://127.0.0.1:{redirecting.port}/")
        notify(store, notifications)
        notifications.deliver(WAIT)
    assert http.received == []
    assert any("redirects are not followed" in line["error"] for line in LOG.named("message_not_sent")[-2:])


# === apprise ===


def test_json_is_sent_by_apprise(store: Store, notifications: Notifications, http: HttpReceiver) -> None:
    notifications.add_channel(OWNER, "checkout", f"json://127.0.0.1:{http.port}/x")
    notify(store, notifications, severity=Severity.ERROR)
    assert notifications.deliver(WAIT) == 1
    document = json.loads(http.received[0].body)
    assert (document["title"], document["message"], document["type"]) == (
        "cr-000001 passed",
        "All gates.",
        "failure",
    )


def test_mail_is_sent_by_apprise(store: Store, notifications: Notifications) -> None:
    with SmtpReceiver() as smtp:
        notifications.add_channel(
            OWNER,
            "checkout",
            f"mailto://127.0.0.1:{smtp.port}?from=scorer@example.com&to=team@example.com",
        )
        notify(store, notifications, subject="cr-000001\r\nBcc: everybody@example.com")
        assert notifications.deliver(WAIT) == 1
        [mail] = smtp.mails
    headers = mail.partition("\r\n\r\n")[0]
    assert "team@example.com" in headers
    assert "\r\nBcc:" not in headers
    assert "All gates." in mail


# === channels ===


def test_channels_filter_by_severity_and_checkpoint(
    store: Store, notifications: Notifications, http: HttpReceiver
) -> None:
    hook(notifications, http, severity=Severity.WARNING, checkpoints=["fraud.checkout"])
    filters = [
        (Severity.INFO, "fraud.checkout", False),
        (Severity.WARNING, "fraud.checkout", True),
        (Severity.ERROR, "fraud.checkout", True),
        (Severity.ERROR, "action.authorise", False),
        (Severity.ERROR, "", True),  # without a checkpoint, for all channels
    ]
    for severity, checkpoint, _ in filters:
        notify(store, notifications, f"{severity} {checkpoint}", severity=severity, checkpoint=checkpoint)
    with store.write() as connection:
        notifications.tell(connection, "payouts", Severity.ERROR, "another project's", "")
    notifications.deliver(WAIT)
    assert [json.loads(result.body)["subject"] for result in http.received] == [
        f"{severity} {checkpoint}".strip() for severity, checkpoint, wanted in filters if wanted
    ]


def test_a_removed_channel_gets_no_messages_and_its_secrets_are_deleted(
    store: Store, notifications: Notifications, http: HttpReceiver
) -> None:
    channel = hook(notifications, http)
    notify(store, notifications)
    notifications.remove_channel(OWNER, channel)
    notify(store, notifications)
    assert notifications.deliver(WAIT) == 0
    assert http.received == []
    assert states(notifications) == [("cr-000001 passed", "given up", 0)]
    with store.read() as connection:
        assert connection.scalar(select(tables.channels.c.secret)) is None
    with pytest.raises(NotFoundError):
        notifications.remove_channel(OWNER, channel)


def test_a_channel_can_be_tested(notifications: Notifications, http: HttpReceiver) -> None:
    channel = hook(notifications, http)
    assert notifications.test_channel(OWNER, channel).state == "sent"
    http.answer = lambda _: 404
    tried = notifications.test_channel(OWNER, channel)
    assert (tried.state, tried.attempts, tried.error) == ("given up", 1, sending.NOT_ACCEPTED)
    assert notifications.deliver(WAIT) == 0
    assert len(http.received) == 2


def test_channels_require_the_role_owner(notifications: Notifications, http: HttpReceiver) -> None:
    channel = hook(notifications, http)
    viewer = Actor("vera", {"checkout": Role.APPROVER})
    stranger = Actor("sam", {"payouts": Role.OWNER})
    [seen] = notifications.channels(viewer, "checkout")
    assert (seen.id, seen.kind, seen.created_by) == (channel, "webhook", "olga")
    for call in (notifications.remove_channel, notifications.test_channel):
        with pytest.raises(NotAllowedError):
            call(viewer, channel)
        messages = []
        for number in (channel, 999):
            with pytest.raises(NotFoundError) as refused:
                call(stranger, number)
            messages.append(str(refused.value).replace(str(number), "?"))
        assert messages[0] == messages[1]
    with pytest.raises(NotAllowedError):
        notifications.add_channel(viewer, "checkout", "slack://x")
    for name in ("channels", "deliveries"):
        with pytest.raises(NotFoundError):
            getattr(notifications, name)(stranger, "checkout")
    assert http.received == []


def test_secrets_are_not_shown(
    store: Store, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving(["1.1.1.1"]))
    for url, secret, shown in (
        (SLACK, None, "slack://T...2/A...D/T...Q"),
        ("mailtos://ann:hunter2@example.com?to=b@example.com", None, "mailtos://ann:****@example.com"),
        ("https://127.0.0.1/services/abcdefghijklmnop?k=v", SECRET, "https://127.0.0.1/services/****?****"),
    ):
        channel = notifications.add_channel(OWNER, "checkout", url, secret=secret)
        assert channel.url.startswith(shown)
        assert notifications.channels(OWNER, "checkout")[-1] == channel
    entries = repr(Audit(store).entries(PLATFORM, action="channel.add"))
    for hidden in ("TIiajkdnlazkcOXrIdevi7FQ", "hunter2", "abcdefghijklmnop", SECRET):
        assert hidden not in entries


@pytest.mark.parametrize(
    ("url", "secret", "words"),
    [
        ("", None, "not one of a supported service"),
        ("nonsense", None, "not one of a supported service"),
        ("file:///etc/passwd", None, "not one of a supported service"),
        ("syslog://", None, "is not a supported service"),
        ("dbus://", None, "not one of a supported service|not a supported"),
        (f"{SLACK}?template=/etc/passwd", None, "option template"),
        ("json://127.0.0.1/?redirect=yes", None, "option redirect"),
        ("json://127.0.0.1/?RTO=1000", None, "option rto"),
        ("json://127.0.0.1/?method=DELETE", None, "option method"),
        ("json://127.0.0.1/?Method=DELETE", None, "option method"),
        ("jsons://example.com/?verify=no", None, "option verify"),
        ("jsons://example.com/?+Authorization=x", None, "option .*uthorization"),
        ("jsons://example.com/?%2BAuthorization=x", None, "option .*uthorization"),
        ("jsons://example.com/?-page=2", None, "option -page"),
        ("jsons://example.com/?:name=fraud", None, "option :name"),
        ("forms://example.com/?attach-as=x", None, "option attach-as"),
        ("matrixs://user:pass@example.com/?discovery=yes", None, "option discovery"),
        ("json://1.1.1.1/", None, "encrypted only"),
        ("jsons://192.168.1.1/", None, "notification_networks"),
        ("jsons://10.96.0.1/", None, "notification_networks"),
        ("jsons://100.64.0.1/", None, "notification_networks"),
        ("jsons://169.254.169.254/", None, "reserved or link-local address"),
        ("mailto://u:p@1.1.1.1?from=a@example.com&to=b@example.com", None, "encrypted only"),
        ("mailto://u:p@10.0.0.5:6379?from=a@example.com&to=b@example.com", None, "notification_networks"),
        ("mailtos://u:p@1.1.1.1?mode=insecure&from=a@example.com&to=b@example.com", None, "encrypted only"),
        ("https://hooks.example.com/x", None, "give a secret"),
        ("https://hooks.example.com/x", "short", "16 to 200 characters"),
        ("http://1.1.1.1/x", SECRET, "encrypted only"),
        ("https://192.168.1.1/x", SECRET, "notification_networks"),
        ("https://[fd12::1]/x", SECRET, "notification_networks"),
        ("https://[::ffff:10.0.0.1]/x", SECRET, "notification_networks"),
        ("https://[64:ff9b::a00:1]/x", SECRET, "notification_networks"),
        ("https://[2002:a00:1::]/x", SECRET, "notification_networks"),
        ("https://169.254.169.254/latest", SECRET, "reserved or link-local address"),
        ("https://[fe80::1]/", SECRET, "reserved or link-local address"),
        ("https://[::ffff:169.254.169.254]/", SECRET, "reserved or link-local address"),
        ("https://[fd00:ec2::254]/", SECRET, "reserved or link-local address"),
        ("https://0.0.0.0/", SECRET, "reserved or link-local address"),
        ("https://user:hunter2@example.com/", SECRET, "omit them"),
        ("https://exa mple.com/", SECRET, "cannot be read"),
        ("https:///path", SECRET, "cannot be read"),
        ("https://host:99999/", SECRET, "cannot be read"),
        (SLACK, SECRET, "a secret signs webhooks"),
    ],
)
def test_invalid_addresses_are_refused(url: str, secret: str | None, words: str) -> None:
    with pytest.raises(InvalidError, match=words) as refused:
        targets.check(url, secret, LOOPBACK)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "https://[::1]/x", "https://localhost/x"])
def test_local_addresses_are_refused_unless_their_network_is_allowed(url: str) -> None:
    with pytest.raises(InvalidError, match="notification_networks"):
        targets.check(url, SECRET, PUBLIC)
    assert targets.check(url, SECRET, LOOPBACK) == "webhook"


def test_link_local_addresses_cannot_be_allowed() -> None:
    everything = Destinations((ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")))
    with pytest.raises(InvalidError, match="reserved or link-local address"):
        targets.check("https://169.254.169.254/latest", SECRET, everything)
    assert targets.check("https://10.0.0.1/x", SECRET, everything) == "webhook"


def test_a_rejection_does_not_show_what_a_name_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolving(["10.20.30.40"]))
    with pytest.raises(InvalidError) as refused:
        targets.check("https://git.internal/x", SECRET, PUBLIC)
    assert "10.20" not in str(refused.value)


def test_a_channel_with_a_refused_address_is_not_created(notifications: Notifications) -> None:
    with pytest.raises(InvalidError):
        notifications.add_channel(OWNER, "checkout", "file:///etc/passwd")
    assert notifications.channels(OWNER, "checkout") == []


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://hooks.example.com:{port}/x", SECRET),
        ("jsons://hooks.example.com:{port}/x", None),
        ("forms://hooks.example.com:{port}/x", None),
        ("ntfys://hooks.example.com:{port}/topic", None),
        ("mailtos://u:p@hooks.example.com:{port}?from=a@example.com&to=b@example.com", None),
    ],
)
def test_a_name_that_resolves_to_a_local_address_after_the_check_is_not_reached(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, url: str, secret: str | None
) -> None:
    """DNS rebinding against a real listener, which must get no connection."""
    names: list[str] = ["1.1.1.1"]
    monkeypatch.setattr(socket, "getaddrinfo", resolving(names))
    access = Access(store, now=clock)
    access.create_project(PLATFORM, "checkout", "Checkout")
    log = RecordedEvents()
    notifications = Notifications(store, access, now=clock, events=EventLog(log))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        channel = notifications.add_channel(
            OWNER, "checkout", url.format(port=listener.getsockname()[1]), secret=secret
        )
        names[:] = ["127.0.0.1"]
        tried = notifications.test_channel(OWNER, channel.id)
        with pytest.raises(TimeoutError):
            listener.accept()
    notifications.close()
    assert tried.state == "given up"
    assert "notification_networks" in tried.error and "127.0.0.1" not in tried.error
    assert log.named("message_not_sent")[0]["delivery"].startswith("dlv_")


def test_the_errors_for_an_owner_do_not_distinguish_open_and_closed_ports(
    notifications: Notifications, http: HttpReceiver
) -> None:
    seen = set()
    with socket.create_server(("127.0.0.1", 0)) as closing, socket.create_server(("127.0.0.1", 0)) as speaks:
        closed = closing.getsockname()[1]
        closing.close()

        def greet() -> None:
            with speaks.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        for port, status in (
            (closed, 0),
            (speaks.getsockname()[1], 0),
            *((http.port, s) for s in (401, 404)),
        ):
            http.answer = lambda _, status=status: status  # type: ignore[misc]
            channel = notifications.add_channel(
                OWNER, "checkout", f"http://127.0.0.1:{port}/x", secret=SECRET
            )
            seen.add(notifications.test_channel(OWNER, channel.id).error)
        thread.join()
    assert seen == {sending.NOT_ACCEPTED}


def test_only_a_thread_that_sends_is_restricted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with pytest.raises(InvalidError), only_to(PUBLIC, encrypted=True):
            thread = threading.Thread(target=lambda: socket.create_connection(address, 5).close())
            thread.start()
            thread.join()
            listener.accept()[0].close()  # the other thread was able to connect
            socket.create_connection(address, 5)
        socket.create_connection(address, 5).close()


def test_a_rejection_is_raised_although_a_library_hides_it() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(InvalidError),
        only_to(PUBLIC, encrypted=True),
        contextlib.suppress(Exception),
    ):
        socket.create_connection(listener.getsockname(), 5)


def test_every_service_on_the_list_is_one_of_apprise() -> None:
    import apprise

    known = set()
    for schema in apprise.Apprise().details()["schemas"]:
        known |= {str(name) for name in (schema["protocols"] or [])}
        known |= {str(name) for name in (schema["secure_protocols"] or [])}
    assert known >= targets._CLOUD | targets._OWN_HOST


def test_a_webhook_over_tls_verifies_the_host_name_of_the_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ssl
    import subprocess

    components.require("openssl")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost",
        ],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    message = sending.Message("dlv_1", "s", "b", Severity.INFO, b"{}")
    with HttpReceiver() as receiver:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
        monkeypatch.setattr(sending, "_tls", lambda: ssl.create_default_context(cafile=tmp_path / "cert.pem"))
        sending.send(f"https://localhost:{receiver.port}/", SECRET, message, LOOPBACK)
        assert len(receiver.received) == 1
        with pytest.raises(sending.NotSentError, match="certificate"):
            sending.send(f"https://127.0.0.1:{receiver.port}/", SECRET, message, LOOPBACK)
        monkeypatch.setattr(sending, "_tls", ssl.create_default_context)
        with pytest.raises(sending.NotSentError, match="certificate"):
            sending.send(f"https://localhost:{receiver.port}/", SECRET, message, LOOPBACK)
        assert len(receiver.received) == 1
