"""python -m accumtrain: the command line."""

from accumtrain.cli.main import main

if __name__ == "__main__":
    main()
