"""A cluster's certificate authority and the certificates of its components."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=365)


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its private key, both PEM."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority kept in a folder: `ca.crt`, `ca.key` and a pair for each name issued."""

    def __init__(self, folder: Path) -> None:
        """Opens the authority in `folder`, or creates it."""
        self.folder = folder
        self.pair = Pair(folder / "ca.crt", folder / "ca.key")
        if not self.pair.certificate.exists():
            folder.mkdir(parents=True, exist_ok=True)
            key = ec.generate_private_key(ec.SECP256R1())
            subject = _name("longboat-test-ca", None)
            builder = _builder(subject, subject, key.public_key()).add_extension(
                x509.BasicConstraints(ca=True, path_length=None), critical=True
            )
            _write(self.pair, builder.sign(key, hashes.SHA256()), key)

    def issue(self, file: str, user: str, group: str | None = None, names: tuple[str, ...] = ()) -> Pair:
        """Issues a certificate for client and server use; `names` are the host names and IP addresses it serves."""
        ca = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        ca_key = _load_key(self.pair.key)
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            _builder(_name(user, group), ca.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), False)
        pair = Pair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        _write(pair, builder.sign(ca_key, hashes.SHA256()), key)
        return pair


def service_account_keys(folder: Path) -> Pair:
    """Creates the key that signs service account tokens; of the files returned, `certificate` is its public half."""
    pair = Pair(folder / "service-accounts.pub", folder / "service-accounts.key")
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair.certificate.write_bytes(public)
    _write_key(pair.key, key)
    return pair


def _name(user: str, group: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group is not None:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


def _load_key(file: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{file} holds no elliptic-curve key")
    return key


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(pair.key, key)


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
