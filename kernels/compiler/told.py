"""Information for users about compilations: which kernel a thread compiles, and why one does not compile."""

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

from numba.core.errors import NumbaError, TypingError  # also those of numba-cuda

from pgas.base import collector, config, parameters
from pgas.kernels.compiler.reason import reason

#: Name of the kernel that a thread compiles, by the thread's identifier.
_compiling: dict[int, str] = {}


def fitted(stub: Callable[..., Any], typing: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    """Return a typing function whose errors name an argument that does not fit the stub, because those of Numba do not."""
    taken = parameters.in_kernels(stub)

    def checked(*args: Any, **kwargs: Any) -> Any:
        if wrong := parameters.misfit(stub.__name__, taken, len(args), kwargs):
            raise error(wrong)
        return typing(*args, **kwargs)

    checked.pysig = inspect.signature(typing)  # type: ignore[attr-defined]  # type_callable() takes the names of arguments from it
    return checked


def telling(dispatcher: Any) -> Any:
    """Let a dispatcher record what it compiles, and reduce its errors to one sentence. A launch also compiles by its method."""
    compile_ = dispatcher.compile

    @functools.wraps(compile_)
    def told(*args: Any, **kwargs: Any) -> Any:
        thread, refused = threading.get_ident(), None
        _compiling[thread] = dispatcher.py_func.__name__
        try:
            with collector.paused():  # Otherwise it takes a tenth of the time.
                return compile_(*args, **kwargs)
        except (NumbaError, AttributeError) as error:
            if config.debugging("traceback"):
                raise
            # Some classes of Numba take arguments other than a message.
            takes_text = isinstance(error, AttributeError) or type(error).__init__ is NumbaError.__init__
            refused = (type(error) if takes_text else TypingError)(reason(error, dispatcher.py_func))
            if isinstance(error, AttributeError) and isinstance(refused, AttributeError):
                refused.name, refused.obj = error.name, error.obj  # for Python's suggestion
        finally:
            _compiling.pop(thread, None)
        raise refused

    dispatcher.compile = told
    return dispatcher


def compiling(thread: int) -> str:
    """Return the name of the kernel that a thread of this process is compiling, "" if there is none."""
    return _compiling.get(thread, "")
