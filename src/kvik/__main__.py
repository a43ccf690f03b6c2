"""``python -m kvik`` is the command ``kvik``."""

from kvik.cli import main

if __name__ == "__main__":
    main()
