"""The embedded novel: 460 kB of text that need neither download nor preparation."""

from pathlib import Path

FOLDER = Path(__file__).with_name("tiny")
TEXT = FOLDER / "persuasion.txt"
NOVEL = "the embedded novel"  # what messages call it
