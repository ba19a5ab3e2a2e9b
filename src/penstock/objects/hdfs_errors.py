"""HDFS errors: exceptions of the library for HDFS, as the end of a sentence."""

from __future__ import annotations

import re
from typing import Final

from penstock.objects.object_stores import Place

__all__ = ["explain", "is_passing", "is_refusal"]

# An answer of Java's in the library: its class, and its message followed by the stack.
_ANSWER: Final = re.compile(r'(?:Fatal)?RPCError\("(?P<class>[\w.$]+)", "(?P<message>(?:[^"\\]|\\.)*)"\)')
_REFUSALS: Final = ("AccessControlException", "AuthorizationException", "InvalidToken")
# Another attempt would find the same.
_LASTING: Final = (
    *_REFUSALS,
    "NSQuotaExceededException",
    "DSQuotaExceededException",
    "ParentNotDirectoryException",
    "InvalidPathException",
    "FileAlreadyExistsException",
    "HadoopIllegalArgumentException",
    "UnresolvedPathException",
)
# An error of Kerberos in the library: GSSAPI's kind of it, and the code of the Kerberos library.
_KERBEROS: Final = re.compile(
    r'GSSAPIError\(.*routine_error: "(?P<kind>\w+)".*?, (?P<code>\d+), "(?P<message>[^"]*)', re.DOTALL
)
_NO_TICKET: Final = ("GSS_S_NO_CRED", "GSS_S_CREDENTIALS_EXPIRED")
_TICKET_HAS_EXPIRED: Final = 2529638944
_KDC_IS_AWAY: Final = 2529639068
_GET_A_TICKET: Final = "run kinit, or name a keytab in KRB5_CLIENT_KTNAME"
_SHOWN: Final = 200


def is_refusal(error: BaseException) -> bool:
    """Return whether the NameNode has refused the user or the request."""
    if kerberos := _KERBEROS.search(str(error)):
        return int(kerberos["code"]) != _KDC_IS_AWAY
    return _class_of(error) in _REFUSALS or "SASLError" in str(error) or "NoSASLMechanism" in str(error)


def is_passing(error: BaseException) -> bool:
    """Return whether another attempt may go well.

    >>> is_passing(OSError("Connection refused (os error 111)"))
    True
    >>> is_passing(RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "no")'))
    False
    """
    if isinstance(error, FileNotFoundError):
        # Of a request that another attempt, or somebody else, was quicker than; an object that is missing stays so.
        return _is_of_rename(error)
    if isinstance(error, OSError):
        return "lookup address" not in str(error)
    if kerberos := _KERBEROS.search(str(error)):
        return int(kerberos["code"]) == _KDC_IS_AWAY
    name = _class_of(error)
    if name:
        return name not in _LASTING
    return (
        "DataTransferError" in str(error) or "OperationFailed" in str(error) or "BlocksNotFound" in str(error)
    )


def explain(error: BaseException, place: Place) -> str:
    """Return why HDFS cannot be used, as the end of a sentence.

    >>> explain(OSError("Connection refused (os error 111)"), Place("hdfs", "namenode:8020", "rooms"))
    'the NameNode namenode:8020 does not answer: connection refused'
    """
    server = f"the NameNode {place.host}"
    text = str(error)
    if isinstance(error, TimeoutError):
        return f"{server}, or a DataNode, does not answer in time"
    if isinstance(error, FileNotFoundError):
        return "the file does not exist"
    if "Connection refused" in text:
        return f"{server} does not answer: connection refused"
    if "listener disconnected" in text:
        return (
            f"{server} has closed the connection; if it asks for Kerberos, name the folder of its core-site.xml in "
            "HADOOP_CONF_DIR"
        )
    if "lookup address" in text:
        return f"{server} does not answer: the host name does not exist"
    if "No NameNode hosts found" in text:
        return (
            f"{place.host!r} is not a nameservice in the configuration of HADOOP_CONF_DIR; name the NameNode's port, "
            "as in hdfs://HOST:8020/PATH"
        )
    if isinstance(error, NotImplementedError):
        return (
            f"the library for HDFS cannot do this here ({_first_line(text)}); folders with erasure coding are not "
            "supported"
        )
    if kerberos := _KERBEROS.search(text):
        return _explain_kerberos(kerberos)
    name = _class_of(error)
    if name == "SafeModeException":
        return f"{server} is in safe mode"
    found = _ANSWER.search(text)
    said = _first_line(found["message"].replace('\\"', '"').replace("\\\\", "\\") if found else text)
    if is_refusal(error):
        return f"access is denied ({said})"
    return f"{server} answered {name}: {said}" if name else f"HDFS failed ({said})"


def _explain_kerberos(found: re.Match[str]) -> str:
    code = int(found["code"])
    if code == _KDC_IS_AWAY:
        return "no KDC of Kerberos answers"
    if code == _TICKET_HAS_EXPIRED:
        return f"access is denied (the ticket of Kerberos has expired: {_GET_A_TICKET})"
    if found["kind"] in _NO_TICKET:
        return f"access is denied (there is no ticket of Kerberos: {_GET_A_TICKET})"
    return f"access is denied (Kerberos, code {code}: {_first_line(found['message'])})"


def _is_of_rename(error: FileNotFoundError) -> bool:
    return str(error).startswith(("rename source", "rename destination parent"))


def _class_of(error: BaseException) -> str:
    """Return the name of Java's class in an answer, "" without one."""
    found = _ANSWER.search(str(error))
    return found["class"].rpartition(".")[2] if found else ""


def _first_line(text: str) -> str:
    return re.split(r"\\n|\n", text, maxsplit=1)[0][:_SHOWN].rstrip(". ")
