"""`taskharbor demo`: a show in four scenes, with a real store and real worker processes."""
