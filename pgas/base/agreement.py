"""Steps that every PE takes, and that fail on all if they fail on one."""

from collections.abc import Callable
from typing import Any

from pgas.base.errors import PgasError

__all__ = ["everywhere", "of_another"]


def everywhere(exchange: Callable[[Any], list[Any]], step: Callable[[], Any], error: type[PgasError]) -> list[Any]:
    """Take a step and return what it gave on each PE. Collective.

    Args:
        exchange: of values among the PEs.
        step: what may fail on some of them.
        error: what that is raised as, on every PE; it names the PEs that failed.
    """
    value, failure = None, None
    try:
        value = step()
    except (PgasError, ValueError, OSError) as caught:
        failure = str(caught)
    except Exception as caught:  # nobody expected it here, and the others wait
        failure = f"{type(caught).__name__}: {caught}"
    answers = exchange((value, failure))
    if failures := [f"PE {pe}: {failed}" for pe, (_, failed) in enumerate(answers) if failed is not None]:
        raise error("; ".join(failures))
    return [v for v, _ in answers]


def of_another(error: Exception) -> Exception:
    """Return an error that another process has, or made, as such."""
    if isinstance(error, PgasError):
        error.of_another = True
    return error
