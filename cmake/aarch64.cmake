# Cross-compiles the library with Debian's gcc-aarch64-linux-gnu. Its glibc is newer than the oldest
# supported one, but the symbols that the library uses have version 2.17, the first of that port.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_ASM_COMPILER aarch64-linux-gnu-gcc)
