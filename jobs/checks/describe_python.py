"""A Python as JSON: `python describe_python.py`, run by the Python of the ranks, which may be an old one.

Standard library only, and no syntax newer than Python 3.6.
"""

import json
import os
import platform
import shutil
import sys


def describe() -> dict:
    """Interpreter, version, module search path, environment, installed distributions by name, `numactl`."""
    try:
        from importlib import metadata

        found = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    except Exception:  # before Python 3.8; damaged files of a package raise errors of several types
        found = {}
    return {
        "executable": sys.executable,
        "version": platform.python_version(),
        "path": [path for path in sys.path if os.path.isabs(path)],
        "environ": dict(os.environ),
        "packages": {name: version for name, version in found.items() if name},
        "has_numactl": shutil.which("numactl") is not None,
    }


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    print(json.dumps(describe()))
