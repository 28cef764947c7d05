"""``python -m trtops.cli``: the ``trtops`` command."""

import sys

from trtops.cli.main import main

sys.exit(main())
