"""Runs a binary as a user does, in a process of its own."""

import subprocess
import sys


def run(module, *flags, cwd):
    """Returns the finished process; its output is text."""
    return subprocess.run(
        [sys.executable, "-m", f"tf_dpadaptive.binaries.{module}", *flags],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
