"""`taskharbor demo`: four scenes, with a real store and real worker processes."""
