/* Relaxed capture mode, for the library's own driver calls. Otherwise some of these calls would
 * invalidate a capture that a thread has begun in global mode. Until the process begins its first
 * capture, the calls are made in the program's mode. */
#pragma once

/* Enter relaxed mode. Return the mode to pass to vgpu_capture_mode_restore. */
int vgpu_capture_mode_relax(void);

void vgpu_capture_mode_restore(int mode);

/* Called before a capture begins. The first time it waits until no call is made in the program's
 * mode, but at most about a second. */
void vgpu_capture_begins(void);
