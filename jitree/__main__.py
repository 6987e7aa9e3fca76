"""``python -m jitree``: the command line."""

from jitree.tools.main import main

if __name__ == "__main__":
    main()
