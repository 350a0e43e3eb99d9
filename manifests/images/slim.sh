#!/bin/sh
# Removes from an image's Python packages what a running program does not use.
#
#   sh slim.sh SITE_PACKAGES C_COMPILER
set -eu
cd "$1"
find . -regextype posix-extended -type f \( \
  -regex '.*/(tests?|_pyinstaller|f2py|examples|[^/]*\.data)/.*' -o \
  -regex '.*\.(pyx|pxd|pxi|pyi|c|h|hpp|a|f90)' -o \
  -regex '.*\.dist-info/(RECORD|INSTALLER|REQUESTED|WHEEL|entry_points\.txt|top_level\.txt)' -o \
  -regex '.*/_core/(_simd|_[a-z_]+_tests)\..*' -o \
  -regex '.*/_testbase\.py|\./numpy/(distutils|typing/mypy_plugin).*' -o \
  -path './pygments/lexers/*' ! -regex '.*/(__init__|_mapping|python|json|yaml)[^/]*' -o \
  -path './pygments/formatters/*' ! -regex '.*/(__init__|_mapping|terminal)[^/]*' \
  \) -delete
find . -type d -empty -delete
test -d numpy || exit 0

# The OpenBLAS of NumPy's wheel, 28 MB with its Fortran library, is replaced by functions that
# abort: the scheduler multiplies no matrices. NumPy's own loops stay as they are.
library=$(echo numpy.libs/libscipy_openblas*.so)
test -f "$library"
# As the runtime linker must find them, also with LD_BIND_NOW.
names=$(readelf --dyn-syms --wide numpy/*/*.so \
  | awk '$7 == "UND" && $8 ~ /^scipy_/ && $8 != "scipy_cblas_sdot64_" { print $8 }' | sort -u)
test -n "$names"
rm numpy.libs/*
{
  cat <<'C'
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
/* `import numpy` verifies its BLAS by this function. */
float scipy_cblas_sdot64_(int64_t n, const float *x, int64_t dx, const float *y, int64_t dy)
{
	float sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += x[i * dx] * y[i * dy];
	return sum;
}
C
  for name in $names; do
    printf 'void %s(void) { fputs("%s: not in this image\\n", stderr); abort(); }\n' "$name" "$name"
  done
} | "$2" -O2 -fPIC -shared -s -Wl,-soname,"$(basename "$library")" -o "$library" -x c -
