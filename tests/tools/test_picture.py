"""make picture: the picture of README is that of its source."""

import html
import re

from examples import ROOT


def test_the_picture_shows_its_source():
    """A text that was changed in only one of them is missing in the other. Where boxes are differs between releases of Graphviz."""
    source, picture = ((ROOT / "docs" / "pictures" / f"transports.{kind}").read_text(encoding="utf-8") for kind in ("dot", "svg"))
    labels = [re.split(r"\\l|<br/>", re.sub(r"</?b>", "", label)) for label in re.findall(r'label=[<"](.*?)[>"](?=[ \]\n])', source)]
    shown = re.findall(r"<text[^>]*>(.*?)</text>", picture)
    assert sorted(plain(text) for text in shown if plain(text)) == sorted(plain(text) for label in labels for text in label if plain(text))


def plain(text):
    return html.unescape(text).replace("\N{NO-BREAK SPACE}", " ").strip()
