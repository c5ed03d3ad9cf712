"""python -m smartgen."""

from smartgen.cli import main

if __name__ == "__main__":
    main()
