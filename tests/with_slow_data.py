"""Runs `widenet_jax.main` with two more data sources: digits that hang, and digits that are slow.

python tests/with_slow_data.py --config=... --config.data.source=hanging_digits
"""

import sys
import time

from widenet_jax.data.sources import SOURCES
from widenet_jax.main import main
from widenet_jax.vision.data.digits import Digits


class HangingDigits(Digits):
    """Digits whose training images hang after the first 1,000 reads."""

    reads = 0

    def __getitem__(self, index: int) -> dict:
        type(self).reads += 1
        if len(self) > 1000 and self.reads > 1000:
            time.sleep(3600)
        return super().__getitem__(index)


class SlowlyTestedDigits(Digits):
    """Digits whose test images take half a second to read."""

    def __getitem__(self, index: int) -> dict:
        if len(self) < 1000 and index:
            time.sleep(0.5)
        return super().__getitem__(index)


if __name__ == "__main__":
    SOURCES["hanging_digits"] = lambda data, split: HangingDigits(split)
    SOURCES["slowly_tested_digits"] = lambda data, split: SlowlyTestedDigits(split)
    sys.exit(main(sys.argv))
