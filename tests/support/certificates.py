"""A certificate authority for tests, which issues valid, expired and revoked certificates as files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from scorer.credentials import ClientTls

DOMAIN = "example.org"
HOSTS = ["localhost", "127.0.0.1"]
_DAY = timedelta(days=1)


class Authority:
    """Issues certificates into a directory: `<name>.pem` and `<name>.key`, `ca.pem`, `revoked.pem`.

    Args:
        directory: Where the files are written.
        name: Of the authority: revocation lists are found by it.
    """

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._serials: dict[str, int] = {}
        now = datetime.now(UTC)
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        replace(directory / "ca.pem", self.pem)
        replace(directory / "revoked.pem", self.revoked())

    @classmethod
    def of_fleet(cls, directory: Path, clients: Iterable[str]) -> Authority:
        """An authority that has issued the certificates of a server on this machine and of its clients."""
        made = cls(directory)
        made.issue("server", HOSTS)
        for name in clients:
            made.issue(name)
        return made

    @property
    def pem(self) -> str:
        """Its own certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def revoked(self, *names: str) -> str:
        """A revocation list with the last certificates of these members."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - _DAY)
            .next_update(now + _DAY)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(x509.CRLNumber(len(names) + 1), critical=False)
        )
        for name in names:
            entry = x509.RevokedCertificateBuilder().serial_number(self._serials[name]).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, name: str, hosts: Sequence[str] = (), *, ended: timedelta | None = None) -> None:
        """Write certificate and key of a member; the certificate ended so long ago, or ends tomorrow."""
        key = ec.generate_private_key(ec.SECP256R1())
        self._serials[name] = serial = x509.random_serial_number()
        until = datetime.now(UTC) + (_DAY if ended is None else -ended)
        names: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(f"spiffe://{DOMAIN}/{name.partition('.')[0]}")
        ]
        names += [
            x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts
        ]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(until - 2 * _DAY)
            .not_valid_after(until)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        replace(self.directory / f"{name}.key", text)
        replace(self.directory / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM).decode())

    def client(self, name: str | None) -> ClientTls:
        """What a member connects with; None: without a certificate of its own."""
        if name is None:
            return ClientTls(self.directory / "ca.pem")
        return ClientTls(
            self.directory / "ca.pem", self.directory / f"{name}.pem", self.directory / f"{name}.key"
        )


def replace(path: Path, text: str) -> None:
    """Replace a file as a careful administrator does: no reader sees half of it."""
    following = path.with_name(f".{path.name}.next")
    following.touch(mode=0o600)
    following.write_text(text)
    following.replace(path)


def server_tls(directory: Path, *, more: str = "") -> str:
    """The section `server.tls` of a server that wants client certificates."""
    return (
        f'[server.tls]\ncertificate = "{directory}/server.pem"\nkey = "{directory}/server.key"\n'
        f'client_ca = "{directory}/ca.pem"\ncrl = ["{directory}/revoked.pem"]\nreload_ms = 20\n{more}\n'
    )


def grants(roles: dict[str, Sequence[str]]) -> str:
    """The section `identity` with the roles of each member."""
    entries = "".join(
        f'[[identity.grants]]\nprincipal = "spiffe://{DOMAIN}/{name}"\nroles = {list(given)!r}\n'
        for name, given in roles.items()
    )
    return f'[identity]\ntrust_domain = "{DOMAIN}"\n{entries}'
