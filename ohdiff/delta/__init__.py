"""Resemblance: which stored chunks a new one is like, and how it is kept as a difference from them."""
