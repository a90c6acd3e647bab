"""The certificate by which a run's orchestrator and its agents know each other on a network; one for each run.

Made when it is first asked for and kept beside the run's key, so that whoever comes back has it.
"""

from __future__ import annotations

import os
import secrets
from datetime import datetime, timezone
from pathlib import Path

from prefect_ft.errors import ConfigError

_FILE = "certificate.pem"


def certificate_of(root: Path) -> str:
    """Give the certificate, with its key, of the run of this directory, as PEM. Raises ConfigError."""
    path = root / _FILE
    try:
        if not path.exists():
            _write(path, _made(root.name))
        return path.read_text()
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}", field="model_dir") from exc


def _made(name: str) -> str:
    """Make one that signs no other, and of which clocks say nothing: whoever shows it is to show this one."""
    from cryptography import x509  # noqa: PLC0415  (costs 0.1 s, and few runs need it)
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"prefect-ft {name}"[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(1970, 1, 1, tzinfo=timezone.utc))
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return (certificate.public_bytes(pem) + private).decode("ascii")


def _write(path: Path, text: str) -> None:
    """Put it there whole, for this user alone; who comes second finds that of the first."""
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
