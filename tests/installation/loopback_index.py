"""A package index on loopback in the place of every host: a proxy that answers for all of them.

uv knows PyTorch's index by name and takes no other address for it, so what it says to that host is
answered here, under a certificate that the test's authority signs for whatever host is asked for.
"""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from pathlib import Path

import trustme

HOST = "127.0.0.1"


class Index:
    """Serves the wheels of a folder by name, over TLS, through a proxy's CONNECT."""

    def __init__(self, wheels: Path, authority: trustme.CA) -> None:
        self.wheels = {path.name: path.read_bytes() for path in wheels.glob("*.whl")}
        self.authority = authority
        self.asked: list[str] = []
        self.listener = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        words = self._head(connection).split()
        host = words[1].partition(":")[0]
        self.asked.append(host)
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(host).configure_cert(context)
        try:
            with context.wrap_socket(connection, server_side=True) as secure:
                while head := self._head(secure):
                    secure.sendall(self._answer(*head.split()[:2]))
        except (ssl.SSLError, ConnectionError):  # the client has what it came for
            return

    @staticmethod
    def _head(connection: socket.socket) -> str:
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(4096)
            if not more:
                return ""
            data += more
        return data.decode()

    def _answer(self, method: str, path: str) -> bytes:
        name = path.rstrip("/").rpartition("/")[2].replace("%2B", "+")
        kind, body, status = "application/octet-stream", self.wheels.get(name), "200 OK"
        if body is None:
            files = [n for n in self.wheels if n.split("-")[0] == name]
            links = "".join(f'<a href="{n.replace("+", "%2B")}">{n}</a>' for n in files)
            kind, body = "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
            status = status if files else "404 Not Found"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + (b"" if method == "HEAD" else body)


@contextmanager
def serve(wheels: Path, folder: Path):
    """The index, and the environment variables with which programs reach nothing but it."""
    authority = trustme.CA()
    certificate = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(certificate))
    index = Index(wheels, authority)
    try:
        yield (
            index,
            {
                "HTTPS_PROXY": index.url,
                "HTTP_PROXY": index.url,
                "ALL_PROXY": index.url,
                "SSL_CERT_FILE": str(certificate),
                "UV_NO_CACHE": "1",
                "UV_HTTP_RETRIES": "0",
            },
        )
    finally:
        index.close()
