# Cross-compiling the library as Debian's compiler does: gcc-aarch64-linux-gnu, whose glibc is newer
# than the floor; what it has of the library's symbols is of version 2.17, that port's first.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_ASM_COMPILER aarch64-linux-gnu-gcc)
