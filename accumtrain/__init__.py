"""Train with the batch you want on the memory you have.

`main()` is the command line and `run(Config(...))` runs one job. `Window` and `Step` train a `Model` of your own
layers. The `register_*` functions add choices to the command line. `__init__.pyi` lists all public names. Each is
imported on first use, so TensorFlow is imported only with the first name that needs it. TensorFlow's log lines are
hidden when it is imported after accumtrain (`ACCUMTRAIN_TF_LOGS=1` shows them).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from accumtrain.process.logs import hide_tensorflow_logs
from accumtrain.version import __version__ as __version__

hide_tensorflow_logs()


@cache
def _public() -> tuple[Any, Any, list[str]]:
    """Return the functions of `lazy_loader`, and the list of public names."""
    import lazy_loader  # not before the first name is asked for, as the command line needs none of it

    return lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    get, _, names = _public()
    return [*names, "__version__"] if name == "__all__" else get(name)


def __dir__() -> list[str]:
    return __getattr__("__all__")
