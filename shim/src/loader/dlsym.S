/*
 * dlsym, dlvsym, dlopen and dlmopen as the program sees them.
 *
 * libc's own functions determine their caller from the return address (for RTLD_NEXT, RTLD_DEFAULT,
 * RPATH and the namespace). So the program's call must reach them by a jump with unchanged registers
 * and stack, which C cannot express.
 *
 * lookup: TARGET(handle, name) returns the address to jump to. If the address is NULL, the program
 * gets the result of ANSWER(handle, name, [version,] caller).
 *
 * opening: TARGET(struct vgpu_registers *) returns the address to jump to, and may change the
 * arguments.
 */
#if defined(__x86_64__)

	.macro entry name
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
	endbr64
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	pushq %rdx
	.cfi_adjust_cfa_offset 8
	.endm

	.macro restore
	popq %rdx
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	.endm

	.macro lookup name, target, answer, caller
	entry \name
	call \target
	restore
	testq %rax, %rax
	jz 1f
	jmpq *%rax
1:	movq (%rsp), \caller
	jmp \answer
	.cfi_endproc
	.size \name, . - \name
	.endm

	.macro opening name, target
	entry \name
	movq %rsp, %rdi
	call \target
	restore
	jmpq *%rax
	.cfi_endproc
	.size \name, . - \name
	.endm

#define THIRD  %rdx
#define FOURTH %rcx

#elif defined(__aarch64__)

	.macro entry name
	.globl \name
	.type \name, %function
\name:
	.cfi_startproc
	hint #34 /* bti c */
	stp x29, x30, [sp, #-48]!
	.cfi_def_cfa_offset 48
	.cfi_offset 29, -48
	.cfi_offset 30, -40
	stp x2, x1, [sp, #16]
	str x0, [sp, #32]
	.endm

	.macro restore
	mov x16, x0
	ldp x2, x1, [sp, #16]
	ldr x0, [sp, #32]
	ldp x29, x30, [sp], #48
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	.endm

	.macro lookup name, target, answer, caller
	entry \name
	bl \target
	restore
	cbz x16, 1f
	br x16
1:	mov \caller, x30
	b \answer
	.cfi_endproc
	.size \name, . - \name
	.endm

	.macro opening name, target
	entry \name
	add x0, sp, #16
	bl \target
	restore
	br x16
	.cfi_endproc
	.size \name, . - \name
	.endm

#define THIRD  x2
#define FOURTH x3

#else
#error "dlsym needs a few instructions for this machine"
#endif

	.text
	lookup dlsym, vgpu_dlsym_target, vgpu_dlsym, THIRD
	lookup dlvsym, vgpu_dlvsym_target, vgpu_dlvsym, FOURTH
	opening dlopen, vgpu_dlopen_target
	opening dlmopen, vgpu_dlmopen_target

	.section .note.GNU-stack, "", %progbits
