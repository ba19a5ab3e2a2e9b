"""Login page: the only page that needs no user. It has no scripts and loads nothing."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from fastapi.responses import HTMLResponse

__all__ = ["login_page"]

_STYLE: Final = """
:root { color-scheme: light dark; --page: #f4f6f9; --card: #fff; --line: #dfe4ec; --text: #17202e; --muted: #5b6779;
  --accent: #1f6feb; --on: #fff; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --page: #0e131b; --card: #161d28; --line: #273142; --text: #e7ecf4;
  --muted: #98a4b6; --accent: #5b9bff; --on: #0b1220; --bad: #ff8f86; } }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
main { width: min(420px, 92vw); background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  padding: 28px; }
h1 { margin: 0 0 6px; font-size: 21px; letter-spacing: -0.02em; }
p { margin: 0 0 18px; color: var(--muted); }
.problem { color: var(--bad); }
label { display: block; font-weight: 600; margin-bottom: 6px; }
input { width: 100%; padding: 10px 12px; border-radius: 8px; border: 1px solid var(--line); background: var(--page);
  color: var(--text); font: inherit; }
button { width: 100%; margin-top: 14px; padding: 10px; border: 0; border-radius: 8px; background: var(--accent);
  color: var(--on); font: inherit; font-weight: 600; cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
"""
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in - penstock</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main>
<h1>penstock</h1>
<p>Open the URL that penstock serve printed, or enter a token.</p>
{problem}<form method="post" action="/login">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button>
</form>
</main>
</body>
</html>
"""
_PROBLEM: Final = '<p class="problem" role="alert">This token is unknown.</p>\n'
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)


def login_page(*, refused: bool = False) -> HTMLResponse:
    """Return the login page; `refused` adds that the token is unknown, and makes the status 403."""
    content = _PAGE.format(style=_STYLE, problem=_PROBLEM if refused else "")
    # With no-referrer, browsers would send the form with Origin: null, which the guard refuses.
    headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "same-origin"}
    return HTMLResponse(content, 403 if refused else 200, headers=headers)
