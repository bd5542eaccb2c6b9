"""``python -m speculant``."""

import sys

from speculant import main

sys.exit(main())
