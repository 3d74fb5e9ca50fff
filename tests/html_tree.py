"""A page of HTML as a tree, read strictly: what is opened last must be closed first."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = ("br", "meta")


class Element:
    def __init__(self, name: str, attributes: dict[str, str | None]) -> None:
        self.name, self.attributes = name, attributes
        self.children: list[Element] = []
        self.words = ""  # its own and its descendants'

    def all(self, name: str, **wanted: str) -> list[Element]:
        found = [e for e in self.children if e.name == name or name == "*"]
        found = [
            e for e in found if all(e.attributes.get(k.rstrip("_")) == v for k, v in wanted.items())
        ]
        return [*found, *(e for child in self.children for e in child.all(name, **wanted))]


class Reader(HTMLParser):
    """A tree, strict about ends: what is opened last is closed first."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.root = Element("root", {})
        self.open = [self.root]
        self.feed(page.decode())
        self.close()
        assert self.open == [self.root]

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag} {attrs}"
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop().name == tag

    def handle_data(self, data):
        for element in self.open:
            element.words += data
