#!/bin/sh
# Removes from an image's Python packages what a running program does not use.
#
#   sh slim.sh SITE_PACKAGES
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
