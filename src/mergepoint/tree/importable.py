"""Python objects by name, `package.module:name`, as a tree in YAML refers to them."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
from pathlib import Path
from typing import Any, Final

from mergepoint.core.paths import nearest

_NAME: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class NotImportable(ValueError):
    """A name that refers to no importable object; the message says why."""


def load_object(name: str, folder: Path | None) -> Any:
    """Import a module and return one of its objects by name.

    Args:
        name: `package.module:name`.
        folder: A folder to search for modules, in addition to those of the interpreter.

    Raises:
        NotImportable: The name has another form, the module cannot be imported, or it has no such
        object.
    """
    if not _NAME.fullmatch(name):
        raise NotImportable(f"{name!r} is not of the form 'package.module:name'")
    module_name, _, object_name = name.partition(":")
    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
        importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result of a run
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        beside = "" if folder is None else f"; modules may stand beside the file, in {folder}"
        raise NotImportable(
            f"{name!r}: importing {module_name} raised {type(error).__name__}: {error}{beside}"
        ) from error
    if folder is not None and (problem := _other(module_name, folder)):
        raise NotImportable(f"{name!r}: {problem}")
    if not hasattr(module, object_name):
        public = [one for one in vars(module) if not one.startswith("_")]
        raise NotImportable(
            f"{name!r}: the module {module_name} has no {object_name!r}"
            f"{nearest(object_name, public)}"
        )
    return getattr(module, object_name)


def _other(name: str, folder: Path) -> str | None:
    """Return where a module was imported from, if not from the file of this name in `folder`."""
    top = name.partition(".")[0]
    beside = (folder / f"{top}.py", folder / top / "__init__.py")
    mine = next((file.resolve() for file in beside if file.is_file()), None)
    found = getattr(sys.modules.get(top), "__file__", None)
    if mine is None or (found is not None and Path(found).resolve() == mine):
        return None
    return f"there is {mine}, but the module {top} was imported from {found}; rename yours"


def name_of(given: Any) -> str | None:
    """Return the name by which an object can be imported, or None.

    A decorated function is known by the name of the function, or of the tool that was made from it.
    """
    function = getattr(given, "func", None) or getattr(given, "coroutine", None) or given
    module = getattr(function, "__module__", None)
    names = (getattr(function, "__name__", None), getattr(given, "name", None))
    if not isinstance(module, str) or module == "__main__":
        return None
    for name in names:
        known = getattr(sys.modules.get(module), name, None) if isinstance(name, str) else None
        if known is given:
            return f"{module}:{name}"
    return None
