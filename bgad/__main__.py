"""`python -m bgad` is `bgad`."""

from bgad.cli.main import main

raise SystemExit(main())
