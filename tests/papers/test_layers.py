"""Figures of single layers: measured once, then shown as a table, a picture and ratios."""

from pathlib import Path

import cv2

from widenet_jax.files import write_json
from widenet_jax.papers import layers
from widenet_jax.papers.experiments import chosen
from widenet_jax.papers.scales import SCALES

SMOKE = SCALES["smoke"]
OVER_D, _, _ = chosen(["sigma_fig2"])


def row(method: str, embed_dim: int, ms: float | None, memory: float) -> dict:
    sizes = {"tokens": 256, "length": 128, "embed_dim": embed_dim, "expert_dim": 16}
    sizes |= {"experts": embed_dim // 4, "selected": 4, "device": "cpu"}
    return {"method": method, **sizes, "ms": ms, "guessed": None, "memory_gib": memory}


def test_ratios_by_hand(tmp_path: Path):
    """The experts of D = 64 take half the time and a quarter of the memory; 128 does not fit."""
    rows = [
        row("dense", 64, 4.0, 0.8),
        row("auto", 64, 2.0, 0.2),
        row("dense", 128, None, 9.0),
        row("auto", 128, 3.0, 0.3),
    ]
    write_json(tmp_path / "rows.json", rows)
    layers.measure(OVER_D, SMOKE, tmp_path / "rows.json")  # finds the rows and times nothing
    found, text = layers.show(OVER_D, SMOKE, tmp_path / "rows.json", tmp_path / "a.png")
    assert found == {"rows": rows}
    line = "D = 64, E = 16, G = 16: the experts take 0.50 of the dense layer's time and 0.25"
    assert line in text and "D = 128" not in text
    assert cv2.imread(str(tmp_path / "a.png")).size
    _, text = layers.show(OVER_D, SMOKE, tmp_path / "none.json", tmp_path / "b.png")
    assert "Not run." in text and not (tmp_path / "b.png").exists()
