"""The commands, a file each; `cli.group` imports the one that is asked for."""
