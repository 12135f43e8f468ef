"""WideNet and its baselines in JAX. Trained models in Python:

    import widenet_jax as wj

    model = wj.load("runs/mine")
    model.predict(["a.jpg", "b.jpg"])
    model.features(["a.jpg"])
    wj.build_model("widenet_b")
    wj.train("configs/digits.py", "runs/mine")

`widenet_jax.inference.api` and `widenet_jax.train` have their documentation. JAX is imported when
one of them is first used.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "build_model", "load", "train"]

if TYPE_CHECKING:
    from widenet_jax.inference.api import Model, build_model, load
    from widenet_jax.train import train
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib
        import os

        from widenet_jax.config.machine import skip_absent_tpu

        skip_absent_tpu(os.environ)  # before JAX looks for devices
        if name == "train":  # the module, which can be called
            return importlib.import_module("widenet_jax.train")
        from widenet_jax.inference import api

        return getattr(api, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
