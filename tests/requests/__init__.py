"""One table of pods that request shares in any dialect, for the tests of the reader and of
admission."""
