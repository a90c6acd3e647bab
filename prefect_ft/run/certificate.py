"""The certificates by which a run's orchestrator and its agents authenticate each other on a network.

An authority for each run signs them: one for the orchestrator, and for each worker a server certificate with the
worker's name. Only the authority is stored, beside the run's key; the others are made when they are needed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_ft.errors import ConfigError
from prefect_ft.worker.tls import Identity

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_FILE = "authority.pem"

_SHARED_FILE = "certificate.pem"
"""In runs of earlier versions: the one certificate that orchestrator and agents share."""


@dataclass(frozen=True)
class Certificates:
    """The certificates of one run. `pem` is its authority with its key, or the one certificate that all share."""

    pem: str = field(repr=False)
    is_shared: bool = False

    def orchestrator(self) -> Identity:
        """Return the orchestrator's certificate, and what it trusts."""
        from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415

        return self._identity("orchestrator", ExtendedKeyUsageOID.CLIENT_AUTH)

    def worker(self, name: str) -> Identity:
        """Return the certificate of a worker's agent, which is for servers only, and what it trusts."""
        from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415

        return self._identity(name, ExtendedKeyUsageOID.SERVER_AUTH)

    def _identity(self, name: str, purpose: x509.ObjectIdentifier) -> Identity:
        if self.is_shared:
            return Identity(self.pem, self.pem, names=False)
        from cryptography import x509  # noqa: PLC0415  (costs 0.1 s, and few runs need it)
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        authority, key = self._authority
        own = ec.generate_private_key(ec.SECP256R1())
        extensions = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([purpose]), True),
            (x509.SubjectAlternativeName([x509.DNSName(name)]), False),
        ]
        return Identity(_signed(name, own, extensions, authority.subject, key), _public(authority))

    @cached_property
    def _authority(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        from cryptography import x509  # noqa: PLC0415
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        key = serialization.load_pem_private_key(self.pem.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(self.pem.encode()), key


def certificates_of(root: Path) -> Certificates:
    """Return the certificates of the run of this directory; creates its authority at the first call.

    Raises ConfigError where that cannot be written or read.
    """
    path, shared = root / _FILE, root / _SHARED_FILE
    try:
        if not path.exists():
            if shared.exists():
                return Certificates(shared.read_text(), is_shared=True)
            _write(path, _new_authority(root.name))
        return Certificates(path.read_text())
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}", field="model_dir") from exc


def _new_authority(name: str) -> str:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    whole = f"prefect-ft {name}"[:64]
    extensions = [(x509.BasicConstraints(ca=True, path_length=0), True)]
    return _signed(whole, key, extensions, _named(whole), key)


def _signed(
    name: str,
    own: ec.EllipticCurvePrivateKey,
    extensions: Sequence[tuple[Any, bool]],
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
) -> str:
    """Return a certificate for a key, with that key. It does not expire: it is of no use after the run."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415

    builder = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(1970, 1, 1, tzinfo=timezone.utc))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc))
    )
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, is_critical)
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    private = own.private_bytes(pem, serialization.PrivateFormat.PKCS8, none).decode("ascii")
    return _public(builder.sign(key, hashes.SHA256())) + private


def _named(name: str) -> x509.Name:
    from cryptography import x509  # noqa: PLC0415

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _public(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _write(path: Path, text: str) -> None:
    """Write a file atomically, for this user alone; an existing one stays."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(new, path)
    except FileExistsError:
        pass
    finally:
        new.unlink()
