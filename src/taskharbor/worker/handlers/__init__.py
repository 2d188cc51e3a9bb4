"""What runs handlers: in the loop, in threads, in processes."""
