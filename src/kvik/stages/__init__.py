"""One file per technique. Every module here, and every plug-in, registers itself on import."""

import importlib
import pkgutil
from importlib.metadata import entry_points

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
for _plugin in entry_points(group="kvik.stages"):
    _plugin.load()
