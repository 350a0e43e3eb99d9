"""The table of pods that request shares, for the tests of the reader and of admission."""
