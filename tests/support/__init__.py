"""What many tests share: real source trees, repositories to put them into, and comparison by what the system says."""
