"""A pytest plugin (``-p without_card``) that hides transports/softhca from the product, as if it had been deleted.

The devices of tests/uverbs may still use it, as they emulate the machine's card.
"""

import builtins

HIDDEN = "pgas.transports.softhca"
_import = builtins.__import__


def _guarded(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    wanted = {name, *(f"{name}.{part}" for part in fromlist or ())}
    if any(f"{module}.".startswith(f"{HIDDEN}.") for module in wanted) and importer.startswith("pgas.") and HIDDEN not in importer:
        raise ModuleNotFoundError(f"No module named {HIDDEN!r} (hidden from {importer})")
    return _import(name, globals, locals, fromlist, level)


builtins.__import__ = _guarded
