//! Calling a function whose number of arguments is known only now.
#![allow(unsafe_code)]

/// Calls `function` with `count` 64-bit integer or pointer arguments, by the System V ABI of x86-64: six in
/// registers, the rest on the stack, the last one first; the stack is a multiple of 16 at the call. `args` must
/// have room for six even if `count` is less.
///
/// The frame is an ordinary one (rbp), so that debuggers and C++ unwinding see through it.
///
/// # Safety
/// `function` must be a function of this ABI that takes at most `count` arguments of these types, and `args` must be
/// valid for `max(count, 6)` reads.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn call(function: u64, args: *const u64, count: u64) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov r11, rdi",
        "mov r10, rsi",
        // rsp is a multiple of 16 here; an odd number of stack arguments needs 8 more.
        "cmp rdx, 6",
        "jbe 3f",
        "test dl, 1",
        "jz 2f",
        "sub rsp, 8",
        "2:",
        "push qword ptr [r10 + 8*rdx - 8]",
        "dec rdx",
        "cmp rdx, 6",
        "ja 2b",
        "3:",
        "mov rdi, [r10]",
        "mov rsi, [r10 + 8]",
        "mov rdx, [r10 + 16]",
        "mov rcx, [r10 + 24]",
        "mov r8, [r10 + 32]",
        "mov r9, [r10 + 40]",
        // Number of vector registers with arguments, for functions with variable arguments.
        "xor eax, eax",
        "call r11",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    static SEEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());

    extern "C" fn none() {
        SEEN.lock().unwrap().push(99);
    }

    extern "C" fn six(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) {
        SEEN.lock().unwrap().extend([a, b, c, d, e, f]);
    }

    #[allow(clippy::too_many_arguments)]
    extern "C" fn seven(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64) {
        SEEN.lock().unwrap().extend([a, b, c, d, e, f, g]);
    }

    #[allow(clippy::too_many_arguments)]
    extern "C" fn ten(
        a: u64,
        b: u64,
        c: u64,
        d: u64,
        e: u64,
        f: u64,
        g: u64,
        h: u64,
        i: u64,
        j: u64,
    ) {
        // Needs an aligned stack if anything does.
        let text = format!("{:.3}", std::hint::black_box(1.5_f64));
        assert_eq!(text, "1.500");
        SEEN.lock().unwrap().extend([a, b, c, d, e, f, g, h, i, j]);
    }

    #[test]
    fn any_number_of_arguments_arrives_in_order() {
        let functions: [(u64, u64); 4] = [
            (none as extern "C" fn() as usize as u64, 0),
            (
                six as extern "C" fn(u64, u64, u64, u64, u64, u64) as usize as u64,
                6,
            ),
            (seven as *const () as u64, 7),
            (ten as *const () as u64, 10),
        ];
        for (function, count) in functions {
            SEEN.lock().unwrap().clear();
            let args: Vec<u64> = (1..=count.max(6)).collect();
            // SAFETY: the functions above take as many 64-bit arguments.
            unsafe { call(function, args.as_ptr(), count) };
            let expected = if count == 0 {
                vec![99]
            } else {
                (1..=count).collect()
            };
            assert_eq!(*SEEN.lock().unwrap(), expected);
        }
    }
}
