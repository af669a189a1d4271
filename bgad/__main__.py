"""`python -m bgad` is `bgad`."""

from bgad.cli import main

raise SystemExit(main())
