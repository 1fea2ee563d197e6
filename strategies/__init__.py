"""Ways of distributing training: one file each, found by a scan of this folder."""
