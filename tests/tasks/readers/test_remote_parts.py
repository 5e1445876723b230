"""Tables behind addresses: a web server, and buckets as S3 has them, both in this process.

Credentials come from the environment, and stand in no name of a part and no message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pickle import dumps, loads
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from pyarrow.fs import S3FileSystem

from dpcore.errors import InputError
from flows.commands.predict import table_parts
from tasks.readers import source_paths
from tasks.readers.parts import Remote
from tests.tasks.readers.test_parts import ONE, SCHEMA, lake, loaded, one, same

__all__ = ["lake", "one"]
SECRET = "hush-of-the-bucket"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Bucket(BaseHTTPRequestHandler):
    """What reading asks of S3: is it there, what lies below, give me these bytes."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.command != "HEAD" or "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        _, bucket, *rest = unquote(asked.path).split("/", 2)
        key, options = (rest or [""])[0], parse_qs(asked.query)
        if bucket != "ward" or SECRET in self.path:
            return self.answer(404)
        if not key:
            return self.answer(200, self.listed(options), Content_Type="application/xml")
        data = self.objects.get(key)
        if data is None:
            return self.answer(404)
        marks = {"ETag": '"1"', "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if self.command == "HEAD":
            return self.answer(200, **marks, Content_Length=str(len(data)))
        if "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last or len(data) - 1), len(data) - 1)
            where = {"Content_Range": f"bytes {start}-{end}/{len(data)}"}
            return self.answer(206, data[start : end + 1], **marks, **where)
        return self.answer(200, data, **marks)

    def listed(self, options: dict[str, list[str]]) -> bytes:
        prefix, mark = (options.get(name, [""])[0] for name in ("prefix", "delimiter"))
        files, folders = [], set()
        for key in sorted(k for k in self.objects if k.startswith(prefix)):
            inner, slash, _ = key.removeprefix(prefix).partition(mark) if mark else ("", "", "")
            if slash:
                folders.add(prefix + inner + mark)
            else:
                files.append(
                    f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z"
                    f"</LastModified><Size>{len(self.objects[key])}</Size></Contents>"
                )
        below = [f"<CommonPrefixes><Prefix>{p}</Prefix></CommonPrefixes>" for p in sorted(folders)]
        return (
            '<?xml version="1.0"?><ListBucketResult><Name>ward</Name><IsTruncated>false'
            f"</IsTruncated><KeyCount>{len(files) + len(below)}</KeyCount>"
            f"{''.join(files + below)}</ListBucketResult>"
        ).encode()


@contextmanager
def served(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_table_of_a_web_server_is_that_of_a_file(one: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    ONE.to_parquet(tmp_path / "one.parquet")
    ONE.to_csv(tmp_path / "one.csv.gz", index=False)
    with served(partial(Quiet, directory=str(tmp_path))) as place:
        for name in ("one.csv", "one.parquet", "one.csv.gz"):
            same(loaded(f"http://{place}/{name}"), loaded(one))
            [part] = table_parts(f"http://{place}/{name}")
            assert isinstance(part, Remote) and part.name == name
        for name in ("none.csv", "*.csv"):
            with pytest.raises(InputError, match=r"Expected a file at data\.path='http.*got none"):
                loaded(f"http://{place}/{name}")


def test_a_lake_in_a_bucket_is_one_file(
    one: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [file for file in lake.rglob("*") if file.is_file()]
    objects = {f"lake/{file.relative_to(lake).as_posix()}": file.read_bytes() for file in files}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nurse")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with served(type("Ward", (Bucket,), {"objects": objects})) as place:
        where = f"scheme=http&endpoint_override={place}&region=nowhere"
        for name in ("lake", "lake/*/*/p-*", "lake/**/p-*"):
            parts = source_paths(SCHEMA, f"s3://ward/{name}?{where}", ())
            assert len(parts) == 5 and all(isinstance(part, Remote) for part in parts)
            assert isinstance(parts[0].system, S3FileSystem)  # type: ignore[union-attr]
            same(loaded(f"s3://ward/{name}?{where}"), loaded(one))
            sent = dumps(
                parts
            )  # as to the workers of a cluster, which have credentials of their own
            assert SECRET.encode() not in sent and SECRET not in str(parts)
            with loads(sent)[0].open() as file:  # noqa: S301  (made two lines above)
                assert file.read() == parts[0].open().read()
        with pytest.raises(
            InputError, match=r"Expected a file at .*lake/none.*, got none"
        ) as refused:
            loaded(f"s3://ward/lake/none.csv?{where}")
        assert SECRET not in str(refused.value)
