"""Models: read, checked, cut, changed and written, before anything is built."""
