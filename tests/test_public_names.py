"""What users may rely on: adding is a promise, removing breaks somebody."""

from __future__ import annotations

import bombus


def test_public_names_are_pinned() -> None:
    assert sorted(bombus.__all__) == [
        "Adapter",
        "BaseConfig",
        "BombusError",
        "Input",
        "Stream",
        "__version__",
        "adapt",
        "known_methods",
        "load",
        "register",
    ]
    assert all(hasattr(bombus, name) for name in bombus.__all__)
