"""Train with the batch you want on the memory you have.

`main()` is the command line and `run(Config(...))` runs one job. `Window` and `Step` train a `Model` of your own
layers. The `register_*` functions add choices to the command line. `__init__.pyi` lists all public names. Each is
imported on first use, so TensorFlow is imported only with the first name that needs it.
"""

import lazy_loader

from accumtrain.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
