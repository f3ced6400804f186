"""``python -m ferrum_local`` is the ``ferrum-local`` command."""

from ferrum_local.cli import main

if __name__ == "__main__":
    main()
