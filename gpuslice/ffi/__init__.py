"""C functions that Python calls, by cffi: libc's system calls and the CUDA driver.

The `.h` files declare them. The modules `*_ffi` are generated and committed, so that a program
needs no C parser at its start; a test checks that they are current. After an edit, from the
repository's root:

    python -m gpuslice.ffi.generate
"""
