#!/usr/bin/env python
# PYTHON_ARGCOMPLETE_OK (the completion of the Tab key calls this file)
"""`python submit.py VERB` is the command `disttrain VERB` of a checkout, or of a copy of the code."""

import sys

from jobs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
