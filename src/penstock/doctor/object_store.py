"""Object store check: the store that the environment names answers, and its clock agrees with this one."""

from __future__ import annotations

import email.utils
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from penstock.doctor.findings import Finding, failed, fine, warning
from penstock.objects.allowed import WEB_SCHEMES
from penstock.objects.object_stores import S3_ENDPOINTS

__all__ = ["check_object_store", "named_endpoint"]

_ANSWER_S: Final = 5.0
# S3 refuses requests whose signature is older, or further in the future.
_REFUSED_S: Final = 900.0
_FAR_S: Final = 60.0


def named_endpoint(environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, str]]:
    """Return the S3 endpoint that the environment names, with its variable; nothing for Amazon's own."""
    for variable in S3_ENDPOINTS:
        if variable in environment:
            yield variable, environment[variable]
            return


def check_object_store(
    variable: str,
    endpoint: str,
    date_of: Callable[[str], str | None] | None = None,
    now: Callable[[], float] = time.time,
) -> Finding:
    """Check that an endpoint answers, and that the clocks agree, without which logins fail."""
    remedy = f"Start it, or correct {variable}. Only jobs that use an object store need it."
    if not endpoint.startswith(tuple(f"{scheme}://" for scheme in WEB_SCHEMES)):
        return failed("object store", f"{variable} is not an address like https://HOST:PORT", remedy)
    try:
        date = (date_of or _date_of)(endpoint)
    except (OSError, ValueError) as e:
        return warning("object store", f"{endpoint} does not answer ({getattr(e, 'reason', e)})", remedy)
    try:
        skew_s = email.utils.parsedate_to_datetime(date or "").timestamp() - now()
    except ValueError:
        return fine("object store", f"{endpoint} answers, without its time")
    found = f"{endpoint} answers; its clock is {skew_s:+.0f} s from this one"
    advice = "Let a time service keep both clocks (chrony, systemd-timesyncd)."
    if abs(skew_s) > _REFUSED_S:
        return failed("object store", f"{found}, and it refuses logins beyond {_REFUSED_S:.0f} s", advice)
    if abs(skew_s) > _FAR_S:
        return warning("object store", found, advice)
    return fine("object store", found)


def _date_of(endpoint: str) -> str | None:
    """Return the time in the answer of a server, whatever it answers. Raises OSError if it does not answer."""
    request = urllib.request.Request(endpoint, method="HEAD")  # noqa: S310  # the scheme is checked
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310  # the same
            found: str | None = answer.headers["Date"]
    except urllib.error.HTTPError as e:
        return e.headers["Date"]
    return found
