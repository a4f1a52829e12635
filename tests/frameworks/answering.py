"""Runs in a framework's environment: programs on standard input are executed, the last value of each is printed as
JSON.

A program may use `await` outside of functions; names stay from one program to the next.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import sys
import traceback
from typing import Any


def execute(program: str, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Run a program; the value of its last line, if that is an expression."""
    tree = ast.parse(program)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    parts: list[ast.Module | ast.Expression] = [tree]
    if isinstance(last, ast.Expr):
        parts.append(ast.Expression(last.value))
    for part in parts:
        mode = "exec" if isinstance(part, ast.Module) else "eval"
        value = eval(compile(part, "<asked>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.iscoroutine(value):
            value = loop.run_until_complete(value)
    return value


def main() -> None:
    """Run programs until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is for the log
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    names: dict[str, Any] = {"__name__": "asked"}
    for line in sys.stdin:
        try:
            answer = json.dumps({"value": execute(json.loads(line), names, loop)}, default=str)
        except BaseException:
            answer = json.dumps({"error": traceback.format_exc()})
        print(answer, file=answers, flush=True)
    os._exit(0)  # threads that wait for a broker have nothing to do any more


if __name__ == "__main__":
    main()
