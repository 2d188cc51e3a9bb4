"""What people and programs are shown: the same documents by the command line and by the REST interface."""
