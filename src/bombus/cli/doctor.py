"""bombus doctor: what is missing on this machine, and how to mend it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    state: Literal["ok", "note", "bad"]
    text: str


def doctor() -> None:
    """Check Python, PyTorch, GPU, optional packages and data, and say how to mend what is wrong."""
    findings = list(examine())
    for finding in findings:
        print(f"{finding.state:<5} {finding.text}")
    if any(finding.state == "bad" for finding in findings):
        raise SystemExit(1)


def examine() -> Iterator[Finding]:
    yield Finding("ok", f"Python {platform.python_version()}")
    yield from _torch()
    yield from _torchvision()
    yield from _extra("matplotlib", "figures", "pictures")
    yield from _extra("timm", "zoo", "timm's networks")
    yield from _data()


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken build can fail in any way at import
        yield Finding("bad", f"PyTorch does not import ({error}); pip install 'torch>=2.11'")
        return
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 11):
        yield Finding("bad", f"PyTorch {torch.__version__} is too old; pip install 'torch>=2.11'")
    else:
        yield Finding("ok", f"PyTorch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    if torch.cuda.is_available():
        name, memory = (
            torch.cuda.get_device_name(),
            torch.cuda.get_device_properties(0).total_memory,
        )
        yield Finding("ok", f"GPU {name}, {memory / 2**30:.0f} GiB")
    elif torch.version.cuda is None:
        yield Finding("note", "No GPU: this PyTorch is a CPU build; small networks will do")
    else:
        yield Finding("note", "No GPU found, though this PyTorch could use one; check the driver")


def _torchvision() -> Iterator[Finding]:
    """A CUDA torchvision beside a CPU torch fails to import, and takes timm with it."""
    if importlib.util.find_spec("torchvision") is None:
        return
    version = importlib.metadata.version("torchvision")
    try:
        import torchvision  # noqa: F401
    except Exception as error:
        yield Finding(
            "note",
            f"torchvision {version} does not import ({str(error).splitlines()[0]}): it was built "
            "for another PyTorch. bombus does not need it; timm does: install the build that "
            "matches your PyTorch, or uninstall it",
        )
    else:
        yield Finding("ok", f"torchvision {version}")


def _extra(package: str, extra: str, purpose: str) -> Iterator[Finding]:
    if importlib.util.find_spec(package) is None:
        yield Finding(
            "note", f"{package} is missing, so no {purpose}; pip install 'bombus[{extra}]'"
        )
    else:
        yield Finding("ok", f"{package} {importlib.metadata.version(package)}")


def _data() -> Iterator[Finding]:
    from bombus.data.fetch import cache_folder

    cache = cache_folder()
    how = {
        "cifar10-c": "bombus data make cifar10-c",
        "cifar100-c": "put the published .npy files there, or bombus run --data FOLDER",
        "imagenet-c": "put the published folders there, or bombus run --data FOLDER",
    }
    for name, remedy in how.items():
        folder = cache / name
        if folder.is_dir():
            yield Finding("ok", f"{name} in {folder}")
        else:
            yield Finding("note", f"{name} is not in {folder}; {remedy}")
