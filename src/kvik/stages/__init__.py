"""One file per technique. Every module here, and every plug-in, registers itself on import."""

import importlib
import pkgutil
import sys
from pathlib import Path

GROUP = "kvik.stages"


def _plugins_installed() -> bool:
    """Whether the metadata of an installed package names the group.

    Asking importlib.metadata outright would cost every start a fifth of its time.
    """
    for folder in sys.path:
        for kind in ("dist-info", "egg-info"):
            for file in Path(folder).glob(f"*.{kind}/entry_points.txt"):
                try:
                    if GROUP in file.read_text(encoding="utf-8", errors="replace"):
                        return True
                except OSError:
                    continue
    return False


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
if _plugins_installed():
    from importlib.metadata import entry_points

    for _plugin in entry_points(group=GROUP):
        _plugin.load()
