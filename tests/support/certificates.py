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
    """Writes `<name>.pem`, `<name>.key`, `ca.pem` and `revoked.pem` to a directory.

    Args:
        directory: Directory that the files are written to.
        name: Name of the authority. Revocation lists refer to the authority by this name.
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
        """Return an authority that has issued certificates for a local server and for its clients."""
        authority = cls(directory)
        authority.issue("server", HOSTS)
        for name in clients:
            authority.issue(name)
        return authority

    @property
    def pem(self) -> str:
        """The certificate of the authority, PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def revoked(self, *names: str) -> str:
        """Return a revocation list (PEM) with the newest certificates of these members."""
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
        """Write the certificate and key of a member.

        The certificate expired `ended` ago; None: it expires tomorrow.
        """
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
        """Return the TLS settings of a client. None: the client has no certificate."""
        if name is None:
            return ClientTls(self.directory / "ca.pem")
        return ClientTls(
            self.directory / "ca.pem", self.directory / f"{name}.pem", self.directory / f"{name}.key"
        )


def replace(path: Path, text: str) -> None:
    """Replace a file atomically, so that a reader never reads a partial file."""
    following = path.with_name(f".{path.name}.next")
    following.touch(mode=0o600)
    following.write_text(text)
    following.replace(path)


def server_tls(directory: Path, *, more: str = "") -> str:
    """Return the section `server.tls` of a server that requires client certificates."""
    return (
        f'[server.tls]\ncertificate = "{directory}/server.pem"\nkey = "{directory}/server.key"\n'
        f'client_ca = "{directory}/ca.pem"\ncrl = ["{directory}/revoked.pem"]\nreload_ms = 20\n{more}\n'
    )


def grants(roles: dict[str, Sequence[str]]) -> str:
    """Return the section `identity` with the roles of each member."""
    entries = "".join(
        f'[[identity.grants]]\nprincipal = "spiffe://{DOMAIN}/{name}"\nroles = {list(given)!r}\n'
        for name, given in roles.items()
    )
    return f'[identity]\ntrust_domain = "{DOMAIN}"\n{entries}'
