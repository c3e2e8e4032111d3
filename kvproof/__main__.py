"""`python -m kvproof` is the command `kvproof`."""

import sys

from kvproof.cli import main

sys.exit(main())
