"""AWS profiles: the keys that AWS_PROFILE names, from the files that AWS's own tools write."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["AwsProfile", "ProfileError", "aws_profile"]


class ProfileError(Exception):
    """A profile cannot be used. The message says why, as the end of a sentence."""


@dataclass(frozen=True)
class AwsProfile:
    """The keys of a profile; `region` is "" when it names none."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    region: str


def aws_profile(environ: Mapping[str, str]) -> AwsProfile:
    """Return the profile that AWS_PROFILE names.

    Looks for it in the files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name, by default ~/.aws/credentials
    and ~/.aws/config; the first wins. Raises ProfileError when the profile has no keys.
    """
    name = environ["AWS_PROFILE"]
    section = name if name == "default" else f"profile {name}"
    found = {
        **_section(environ.get("AWS_CONFIG_FILE") or "~/.aws/config", section),
        **_section(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials", name),
    }
    if not found:
        raise ProfileError(f"the profile {name!r}, which AWS_PROFILE names, does not exist")
    key, secret = found.get("aws_access_key_id", ""), found.get("aws_secret_access_key", "")
    if not key or not secret:
        raise ProfileError(
            f"the profile {name!r}, which AWS_PROFILE names, has no keys, and roles and sign-ons of profiles are not "
            "supported; export the credentials into the environment of the job"
        )
    return AwsProfile(key, secret, found.get("aws_session_token", ""), found.get("region", ""))


def _section(file: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(Path(file).expanduser().read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RuntimeError, configparser.Error) as e:
        # The parser's message contains lines of the file.
        raise ProfileError(f"the file {file!r} cannot be read ({type(e).__name__})") from None
    return dict(parser[name]) if parser.has_section(name) else {}
