"""One file for each contestant; every file whose name has no leading underscore is discovered."""
