"""What TaskHarbor tells about itself while it runs."""
