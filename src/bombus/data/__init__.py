"""Where images come from. A data set knows domains and files; a stream puts them in order.

    images      ImageSet, the protocol of every data set, and how image files are read
    cifar       load_cifar: the clean CIFAR-10/100, from any of their published layouts
    cifar_c     CifarC: CIFAR-10-C and CIFAR-100-C as published .npy files
    imagenet_c  ImageNetC: ImageNet-C as published folders, 5,000-image protocol
    folder      ImageFolder: any domain/class/image tree
    corruptions corrupt: our generator of the corruptions
    make        make_cifar_c: writes the published file format with our generator
    fetch       get_cifar10 and the cache folder

Names are looked up on first use, so that asking for the cache folder does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bombus.data.cifar import load_cifar
    from bombus.data.cifar_c import CifarC
    from bombus.data.fetch import cache_folder, get_cifar10
    from bombus.data.folder import ImageFolder
    from bombus.data.imagenet_c import ImageNetC
    from bombus.data.images import ImageSet
    from bombus.data.make import make_cifar_c

__all__ = [
    "CifarC",
    "ImageFolder",
    "ImageNetC",
    "ImageSet",
    "cache_folder",
    "get_cifar10",
    "load_cifar",
    "make_cifar_c",
]

_HOME = {
    "CifarC": "cifar_c",
    "ImageFolder": "folder",
    "ImageNetC": "imagenet_c",
    "ImageSet": "images",
    "cache_folder": "fetch",
    "get_cifar10": "fetch",
    "load_cifar": "cifar",
    "make_cifar_c": "make",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
