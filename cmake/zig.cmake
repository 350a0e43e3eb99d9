# Cross-compiles with the ziglang package of .venv, which contains every target's libc and needs no
# other package. GPUSLICE_TARGET is zig's name of the target, such as aarch64-linux-musl.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES GPUSLICE_TARGET)
string(REGEX REPLACE "-.*" "" GPUSLICE_PROCESSOR "${GPUSLICE_TARGET}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${GPUSLICE_PROCESSOR})
set(GPUSLICE_PYTHON ${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python)
foreach(language C ASM)
  set(CMAKE_${language}_COMPILER ${GPUSLICE_PYTHON})
  set(CMAKE_${language}_COMPILER_ARG1 "-m ziglang cc -target ${GPUSLICE_TARGET}")
  set(CMAKE_${language}_COMPILER_TARGET ${GPUSLICE_TARGET})
endforeach()
