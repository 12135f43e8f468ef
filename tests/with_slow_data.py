"""Runs `widenet_jax.main` with two more data sources: digits that hang, and digits that are slow.

python tests/with_slow_data.py --config=... --config.data.source=hanging_digits
"""

import dataclasses
import sys
import time

from widenet_jax.main import main
from widenet_jax.specs import SourceSpec, register
from widenet_jax.vision.data.digits import Digits
from widenet_jax.vision.spec import CLASSIFICATION


class HangingDigits(Digits):
    """Digits whose training images hang after the first 1,000 reads."""

    reads = 0

    def __getitem__(self, index: int) -> dict:
        type(self).reads += len(self) > 1000  # the test images are read before the first step
        if self.reads > 1000:
            time.sleep(3600)
        return super().__getitem__(index)


class SlowlyTestedDigits(Digits):
    """Digits whose test images take half a second to read."""

    def __getitem__(self, index: int) -> dict:
        if len(self) < 1000 and index:
            time.sleep(0.5)
        return super().__getitem__(index)


if __name__ == "__main__":
    hanging = SourceSpec(lambda data, split, info: HangingDigits(split))
    slow = SourceSpec(lambda data, split, info: SlowlyTestedDigits(split))
    sources = {"hanging_digits": hanging, "slowly_tested_digits": slow}
    register(dataclasses.replace(CLASSIFICATION, sources=sources))
    sys.exit(main(sys.argv))
