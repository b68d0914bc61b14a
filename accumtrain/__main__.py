"""python -m accumtrain: the command line."""

from accumtrain.shell.main import main

if __name__ == "__main__":
    main()
