"""`taskharbor top`: a live view of a store."""
