"""What keeps a worker and its store in order beside the jobs."""
