"""Train with the batch you want on the memory you have.

`main()` is the command line and `run(Config(...))` one job of it. `Window` and `Step` train a `Model` of one's own
layers; the register functions add choices to the command line. `__init__.pyi` lists all names; each is imported on
first use, and TensorFlow with it where it is needed.
"""

import lazy_loader

from accumtrain.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
