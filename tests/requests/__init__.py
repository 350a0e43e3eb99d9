"""One table of pods that request shares, over all dialects, for the reader and for admission."""
