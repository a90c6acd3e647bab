"""An S3 server on this machine, with what clients find it by in the environment."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

_NUMBERS = itertools.count(1)
"""Servers of one process share their buckets."""


class Store:
    """A server of S3's protocol with one bucket; `url` is a place in it that nothing else uses."""

    def __init__(self, server: Any) -> None:
        import boto3

        self._server = server
        host, port = server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="k",
            aws_secret_access_key="s",  # the server takes any
            region_name="us-east-1",
        )
        self.bucket = f"training-{next(_NUMBERS)}"
        self.client.create_bucket(Bucket=self.bucket)
        self.url = f"s3://{self.bucket}/ck"

    def put(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"ck/{name}", Body=data)

    def put_many(self, names: Iterable[str], data: bytes) -> None:
        """Put objects past the protocol, which takes milliseconds for each: the server is in this process."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for name in names:
            backend.put_object(self.bucket, f"ck/{name}", data)

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"ck/{name}")

    def stop(self) -> None:
        """Stop the server. Idempotent."""
        if self._server is not None:
            self._server.stop()
        self._server = None


def environment(store: Store) -> dict[str, str]:
    """Return the variables by which boto3, s3fs and others reach the server."""
    return {
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return an S3 server to which the environment of this process, and of what it starts, leads."""
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    import s3fs

    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    store = Store(server)
    for name, value in environment(store).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield store
    s3fs.S3FileSystem.clear_instance_cache()
    store.client.close()
    store.stop()
