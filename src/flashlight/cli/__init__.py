"""The commands of `python -m flashlight`, one file each; `add` declares a command's arguments and `run` carries it out."""
