"""Answers `import nvidia_resiliency_ext.inprocess` with `prefect_ft.compat.nvrx`; nothing else of that package is here.

Install it only where nvidia-resiliency-ext itself is not: both have this name.
"""

import importlib
import pkgutil
import sys

from prefect_ft.compat import nvrx as inprocess

for _module in pkgutil.iter_modules(inprocess.__path__):
    _name = f"{inprocess.__name__}.{_module.name}"
    sys.modules[f"{__name__}.inprocess.{_module.name}"] = importlib.import_module(_name)
sys.modules[f"{__name__}.inprocess"] = inprocess
