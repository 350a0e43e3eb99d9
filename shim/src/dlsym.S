/*
 * dlsym and dlvsym as the program sees them.
 *
 * libc's dlsym reads its caller from the return address (RTLD_NEXT, RTLD_DEFAULT), so names that are
 * not ours must reach it as if we were not there: a jump with registers and stack as they came, which
 * C cannot promise. vgpu_dlsym_target(name) says where to jump, or NULL: the name is a hook's, and
 * vgpu_dlsym(handle, name, caller) answers.
 */
#if defined(__x86_64__)

	.macro lookup entry, target, answer, caller
	.globl \entry
	.type \entry, @function
\entry:
	.cfi_startproc
	endbr64
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	pushq %rdx
	.cfi_adjust_cfa_offset 8
	movq %rsi, %rdi
	call \target
	popq %rdx
	.cfi_adjust_cfa_offset -8
	popq %rsi
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	testq %rax, %rax
	jz 1f
	jmpq *%rax
1:	movq (%rsp), \caller
	jmp \answer
	.cfi_endproc
	.size \entry, . - \entry
	.endm

	.text
	lookup dlsym, vgpu_dlsym_target, vgpu_dlsym, %rdx
	lookup dlvsym, vgpu_dlvsym_target, vgpu_dlvsym, %rcx

#else
#error "dlsym needs a few instructions for this machine"
#endif

	.section .note.GNU-stack, "", %progbits
