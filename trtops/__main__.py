"""``python -m trtops``: the ``trtops`` command."""

import sys

from trtops.cli.main import main

if __name__ == "__main__":  # child processes import this file again
    sys.exit(main())
