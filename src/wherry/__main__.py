"""`python -m wherry`: the command line."""

from wherry.cli.main import main

if __name__ == "__main__":
    main()
