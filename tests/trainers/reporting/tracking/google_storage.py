"""A small server that speaks the part of Google Cloud Storage that TensorFlow asks for.

The client, which is TensorFlow's own, only knows https://www.googleapis.com and
https://storage.googleapis.com. It is led here by what it heeds as any program: a proxy,
which connects it to this server whatever host it asks for, and a certificate authority
that it is told to trust, https://cloud.google.com/storage/docs/json_api/v1.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import json
import pathlib
import re
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_HOSTS = ("www.googleapis.com", "storage.googleapis.com")


class GoogleStorage:
    """What is stored, and how a program is led to it.

    Attributes:
      objects: content by bucket and name, such as bucket/runs/one/file.
      environment: of a program that is to find it.
      fails: whether every request is refused, as of a user without permission.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.environment: dict[str, str] = {}
        self.fails = False


@contextlib.contextmanager
def google_storage(folder: pathlib.Path) -> Iterator[GoogleStorage]:
    """Serves an empty storage as long as the block lasts.

    Args:
      folder: for its certificate.
    """
    storage = GoogleStorage()
    certificate, key = _certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = _Server(("127.0.0.1", 0), _handler(storage, context))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    storage.environment = {
        "https_proxy": f"http://127.0.0.1:{server.server_address[1]}",
        "CURL_CA_BUNDLE": str(certificate),
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "nobody",
        "NO_GCE_CHECK": "true",
        # A client that is refused tries ten times, for a minute and a half.
        "GCS_RETRY_CONFIG_MAX_RETRIES": "1",
        "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",
    }
    try:
        yield storage
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


def _handler(storage: GoogleStorage, context: ssl.SSLContext) -> type[_Handler]:
    class Handler(_Handler):
        pass

    Handler.storage = storage
    Handler.context = context
    return Handler


class _Handler(http.server.BaseHTTPRequestHandler):
    """A proxy for one request, then the host that the client believes to be at."""

    protocol_version = "HTTP/1.1"
    storage: GoogleStorage
    context: ssl.SSLContext

    def do_CONNECT(self) -> None:
        self.send_response(200, "Connection established")
        self.end_headers()
        self.rfile.close()
        self.wfile.close()
        self.connection: socket.socket = self.context.wrap_socket(
            self.connection, server_side=True
        )
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb")
        self.close_connection = False

    def finish(self) -> None:
        super().finish()
        # The server closes the one that this has taken the place of.
        self.connection.close()

    def do_GET(self) -> None:
        path, query = self._request()
        if found := re.fullmatch(r"/storage/v1/b/([^/]+)/o/(.+)", path):
            self._describe("/".join(map(urllib.parse.unquote, found.groups())))
        elif found := re.fullmatch(r"/storage/v1/b/([^/]+)/o", path):
            self._list(found[1], query.get("prefix", ""))
        elif re.fullmatch(r"/storage/v1/b/[^/]+", path):
            self._answer(200, {"location": "US-EAST1"})
        else:
            self._send(urllib.parse.unquote(path[1:]))

    def do_POST(self) -> None:
        path, query = self._request()
        bucket = re.fullmatch(r"/upload/storage/v1/b/([^/]+)/o", path)
        if bucket is None:
            return self._answer(404, {})
        name = f"{bucket[1]}/{query['name']}"
        if query["uploadType"] == "resumable":
            where = f"https://{_HOSTS[0]}/session/{urllib.parse.quote(name)}"
            return self._answer(200, {}, Location=where)
        self.storage.objects[name] = self._body()
        return self._answer(200, {})

    def do_PUT(self) -> None:
        path, _ = self._request()
        content = self._body()
        # Without a first byte it is a question how much has come.
        if re.match(r"bytes \d", self.headers["Content-Range"]):
            name = urllib.parse.unquote(path.removeprefix("/session/"))
            self.storage.objects[name] = content
        self._answer(200, {})

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def _request(self) -> tuple[str, dict[str, str]]:
        parts = urllib.parse.urlsplit(self.path)
        return parts.path, dict(urllib.parse.parse_qsl(parts.query))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _describe(self, name: str) -> None:
        if name not in self.storage.objects:
            return self._answer(404, {})
        size = str(len(self.storage.objects[name]))
        updated = "2026-01-01T00:00:00.000Z"
        return self._answer(200, {"size": size, "generation": "1", "updated": updated})

    def _list(self, bucket: str, prefix: str) -> None:
        start = f"{bucket}/{prefix}"
        names = [n for n in sorted(self.storage.objects) if n.startswith(start)]
        items = [{"name": name.removeprefix(f"{bucket}/")} for name in names]
        self._answer(200, {"items": items} if items else {})

    def _send(self, name: str) -> None:
        if name not in self.storage.objects:
            return self._answer(404, {})
        content = self.storage.objects[name]
        first, last = re.fullmatch(
            r"bytes=(\d+)-(\d+)", self.headers.get("Range", f"bytes=0-{len(content)}")
        ).groups()  # type: ignore[union-attr]
        return self._answer(206, content[int(first) : int(last) + 1])

    def _answer(self, status: int, content: Any, **headers: str) -> None:
        if self.storage.fails:
            status, content = 403, {}
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _certificate(folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """One that signs itself, in the names of the hosts, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host) for host in _HOSTS]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    own = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].write_bytes(key.private_bytes(pem, *own))
    return paths
