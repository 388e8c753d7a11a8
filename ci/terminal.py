#!/usr/bin/env python3
"""Converts the output of `tmux capture-pane -e -p` to an HTML page for a screenshot: `terminal.py <CAPTURED >PAGE`."""

import html
import re
import sys

STYLES = {
    "1": "font-weight:bold",
    "2": "opacity:.6",
    "7": "background:#d8dee9;color:#1c212b",
    "31": "color:#ff6b5e",
    "33": "color:#e5b567",
    "38;5;9": "color:#ff6b5e",
    "38;5;11": "color:#e5b567",
    "91": "color:#ff6b5e",
    "93": "color:#e5b567",
}
PAGE = """<!DOCTYPE html><meta charset="utf-8"><style>body {{ margin: 0; background: #1c212b; color: #d8dee9; }}
pre {{ margin: 12px 16px; font: 15px/1.3 "DejaVu Sans Mono", monospace; }}</style><pre>{}</pre>
"""


def page(text):
    parts, active_codes = [], set()
    for index, part in enumerate(re.split("\x1b\\[([0-9;]*)m", text)):
        if index % 2 == 0:
            style = ";".join(STYLES[code] for code in sorted(active_codes) if code in STYLES)
            parts.append(f'<span style="{style}">{html.escape(part)}</span>' if style else html.escape(part))
            continue
        # `38;5;9` is one code, `0;1` are two.
        for code in re.findall("[34]8;5;[0-9]+|[0-9]+", part) or ["0"]:
            if code == "0":
                active_codes.clear()
            elif code == "39":
                active_codes = {active_code for active_code in active_codes if not active_code.startswith(("3", "9"))}
            else:
                active_codes.add(code)
    return PAGE.format("".join(parts))


sys.stdout.write(page(re.sub("\x1b\\][^\x07]*\x07|\x0f", "", sys.stdin.read())))
