"""Collective steps, which fail on all PEs if they fail on one."""

from collections.abc import Callable
from typing import Any

from pgas.base.errors import PgasError


def everywhere(exchange: Callable[[Any], list[Any]], step: Callable[[], Any], error: type[PgasError]) -> list[Any]:
    """Take a step and return the results of all PEs. Collective.

    Args:
        exchange: exchanges values among the PEs.
        step: may fail on some PEs.
        error: class of the error that every PE raises if a step failed; its message names the PEs that failed.
    """
    value, failure = None, None
    try:
        value = step()
    except (PgasError, ValueError, OSError) as caught:
        failure = str(caught)
    except Exception as caught:  # An unexpected error must also reach the other PEs, because they wait.
        failure = f"{type(caught).__name__}: {caught}"
    answers = exchange((value, failure))
    if failures := [f"PE {pe}: {failed}" for pe, (_, failed) in enumerate(answers) if failed is not None]:
        raise error("; ".join(failures))
    return [v for v, _ in answers]


def of_another(error: Exception) -> Exception:
    """Mark an error as the consequence of another process's error, and return it."""
    if isinstance(error, PgasError):
        error.of_another = True
    return error
