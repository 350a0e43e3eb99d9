"""Scripts by which root in a container evades the limit of its own or another container."""

from __future__ import annotations

from typing import Final

from gpuslice.contract import names
from tests.node.scene import PROBE

COPY: Final = f"""
set -e
mkdir -p /dev/copy /dev/bin
cp {PROBE} /dev/bin/probe
for name in libc.so.6 libdl.so.2 libpthread.so.0 libcuda.so.1; do
    cp -L --parents /usr/lib/*/$name /dev
done
cp -L --parents /lib64/ld-linux*.so.* /dev
ln -s /simgpu /dev/copy/gpus
"""
"""Copies the program, the driver and the loader into /dev, which has no preload file."""

REMOVE: Final = f"""
for root in /proc/[0-9]*/root; do
    test -e $root{names.CONTAINER_DIR}/{names.FILE_GRANT} || continue
    rm $root{names.CONTAINER_PRELOAD}
    exit
done
echo no process of another share is to be seen
exit 2
"""
"""Removes the preload file of the first process it finds with a grant."""

ENTER: Final = f"""
import ctypes, glob, os
libc = ctypes.CDLL(None)
granted = glob.glob("/proc/[0-9]*/root{names.CONTAINER_DIR}")[0]
process = granted.split("/")[2]
assert libc.setns(os.open("/proc/" + process + "/ns/mnt", os.O_RDONLY), 0) == 0
assert libc.umount2({names.CONTAINER_PRELOAD.encode()!r}, 0) == 0
"""
"""Unmounts the preload file in the mount namespace of a process with a grant. Needs SYS_ADMIN."""
