"""What users do: snapshot, diff, restore, check. Each plans and runs on open repositories and tells an observer."""
