"""Lets `python -m ohdiff` be the command."""

from ohdiff.cli.main import main

main()
