"""C functions of libc and of the CUDA driver that Python calls by cffi.

The `.h` files declare the functions. The modules `*_ffi` are generated from these and committed, so
that a program needs no C parser when it starts. A test checks that they are current. After an edit
of a `.h` file, run in the repository's root:

    python -m gpuslice.ffi.generate
"""
