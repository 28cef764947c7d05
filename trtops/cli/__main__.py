"""``python -m trtops.cli``: the ``trtops`` command."""

import sys

from trtops.__main__ import main

if __name__ == "__main__":  # child processes import this file again
    sys.exit(main())
