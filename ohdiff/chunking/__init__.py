"""Where files are cut into chunks, and how chunks are named: the rule, the engine contract, and its engines."""
