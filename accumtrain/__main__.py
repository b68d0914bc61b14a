"""python -m accumtrain: the command line."""

from accumtrain import main

if __name__ == "__main__":
    main()
