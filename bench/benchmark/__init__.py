"""What the two benches are made of: running and measuring commands, the tools compared, corpora, checks, reports."""
