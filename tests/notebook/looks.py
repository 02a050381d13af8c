"""Compare what a page shows with committed screenshots.

Screenshots are committed at half their size. Squares of 32 pixels are compared, blurred: another version of the browser
may place text a little differently, but a panel that moved, an empty canvas, a colour or a word fails. `make
screenshots` renews them; look at each before it is committed.
"""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from tests.repo import ROOT

FOLDER = Path(__file__).parent / "screenshots"
THEMES = ("light", "dark")
# Seconds of this computer, and hashes, which change with the schema of machine files.
HIDDEN = ".kb-facts, .kb-message, .kb-note, .kb-machine code, .kb-history td[data-of=took_s], .kb-widget-readout"
TILE, MOST = 16, 10


def styled(page):
    """Set all text in the fonts that matplotlib brings, whatever is installed, and let nothing move by itself."""
    import matplotlib as mpl

    folder = Path(mpl.get_data_path(), "fonts", "ttf")
    faces = [
        [family, f"url(data:font/ttf;base64,{b64encode((folder / name).read_bytes()).decode()})", weight]
        for family, name, weight in (
            ("plain", "DejaVuSans.ttf", "400"), ("plain", "DejaVuSans-Bold.ttf", "600"),
            ("mono", "DejaVuSansMono.ttf", "400"),
        )
    ]  # fmt: skip
    sheet = f""":root, body {{
      --jp-ui-font-family: plain !important; --jp-content-font-family: plain !important;
      --jp-code-font-family: mono !important;
    }}
    .taken :is({HIDDEN}) {{ visibility: hidden !important; }}
    * {{ transition: none !important; caret-color: transparent !important; }}"""
    page.driver.execute_async_script(
        """const [faces, text, done] = arguments;
        const sheet = document.createElement("style");
        sheet.textContent = text;
        document.head.append(sheet);
        const made = faces.map(([family, source, weight]) => new FontFace(family, source, { weight }));
        for (const face of made) document.fonts.add(face);
        Promise.all(made.map((face) => face.load())).then(() => done());""",
        faces,
        sheet,
    )


def taken(page, css=""):
    """Return a picture of an element, or of what the window shows, without what differs between runs."""
    page.run("document.documentElement.classList.add('taken')")
    page.frame()
    shot = page.still(css)
    page.run("document.documentElement.classList.remove('taken')")
    return shot


def worst_tile(shot, known):
    """Return the largest difference of a square of two pictures, 0 to 255, and where it is [px]."""
    if shot.size != known.size:
        return 255.0, shot.size
    a, b = (np.asarray(x.filter(ImageFilter.BoxBlur(1)), float) for x in (shot, known))
    apart = np.abs(a - b).max(axis=2)
    h, w = (-(-n // TILE) * TILE for n in apart.shape)
    apart = np.pad(apart, ((0, h - apart.shape[0]), (0, w - apart.shape[1])))
    tiles = apart.reshape(h // TILE, TILE, w // TILE, TILE).mean(axis=(1, 3))
    y, x = np.unravel_index(tiles.argmax(), tiles.shape)
    return float(tiles.max()), (int(x) * 2 * TILE, int(y) * 2 * TILE)


def compare(name, shot, *, renew=False):
    """Compare a picture with the committed one of its name, or renew that."""
    path, small = FOLDER / f"{name}.png", shot.reduce(2)
    if renew:
        small.save(path, optimize=True)
        return
    worst, place = worst_tile(small, Image.open(path))
    if worst > MOST:
        failed = ROOT / "build" / "screenshots" / f"{name}.png"
        failed.parent.mkdir(parents=True, exist_ok=True)
        shot.save(failed)
    assert worst <= MOST, f"{name} differs at {place}: see build/screenshots; if it is right, `make screenshots`"
