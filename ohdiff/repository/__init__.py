"""The repository: keys, snapshots, index, packs and chunks over a storage. Knows nothing of files or engines."""
