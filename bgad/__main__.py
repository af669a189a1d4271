"""The entry point: `python -m bgad` is `bgad`."""

from bgad.cli import interrupts


def run() -> int:
    """Run the command line, with Ctrl-C handled from the imports to the end of the process."""
    try:
        interrupts.install()
        from bgad.cli.main import main

        return main()
    except KeyboardInterrupt:
        return interrupts.EXIT_INTERRUPTED
    finally:
        interrupts.ignore()


if __name__ == "__main__":
    raise SystemExit(run())
