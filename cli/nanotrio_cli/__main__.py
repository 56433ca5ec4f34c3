"""``python -m nanotrio_cli`` is the command."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
