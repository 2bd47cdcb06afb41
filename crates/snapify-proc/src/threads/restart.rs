//! System calls that a stop has interrupted.
//!
//! A thread that sleeps in a system call when it is stopped leaves it with one of the kernel's internal errors (512 to 516),
//! still visible in `rax` beside the number in `orig_rax`. When the thread goes on with exactly these registers, the kernel
//! itself makes the call again, or lets it fail with EINTR if a signal handler runs first. That also works in a restored
//! thread, so the registers are mostly kept; see signal(7) and the kernel's `handle_signal`.
//!
//! Two cases need help:
//! - Error 516 is continued through a `restart_block` in the kernel, which a restored thread does not have. It is turned
//!   into 514 (made again unless a handler runs): exact for absolute times; sleeps go on with the remainder that the kernel
//!   has stored; poll and relative futex waits start over. When the kernel has continued a call in this way before (after
//!   an earlier checkpoint, or a stop by job control), the thread is in restart_syscall(2), and which call that stands for
//!   is told only by the code that made it.
//! - Some calls end with a plain EINTR that the program would see though no handler ran. They are turned into 514 too. Among them
//!   only calls that have no effect when they are interrupted.

use snapify_sys::ptrace::Registers;

const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;
const EINTR: i64 = -(libc::EINTR as i64);
const TIMER_ABSTIME: u64 = 1;
const SYSCALL_BYTES: u64 = 2;

/// Calls that answer EINTR to being stopped, and that can simply be made again.
const MADE_AGAIN: &[i64] = &[
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_io_uring_enter,
    libc::SYS_io_getevents,
    // With SO_RCVTIMEO or SO_SNDTIMEO.
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
];

/// The number of the call that the thread is in, and its result.
fn interrupted(registers: &Registers) -> Option<(i64, i64)> {
    let number = registers.orig_rax as i64;
    (number >= 0).then_some((number, registers.rax as i64))
}

/// Registers with which a stopped thread of a running program goes on as if it had not been stopped.
#[must_use]
pub fn undisturbed(mut registers: Registers) -> Registers {
    if let Some((number, EINTR)) = interrupted(&registers)
        && MADE_AGAIN.contains(&number)
    {
        registers.rax = ERESTARTNOHAND as u64;
    }
    registers
}

/// Where a thread of a running program goes on, and what `rax` holds there, if it is not the kernel that makes an interrupted
/// call again.
#[must_use]
pub fn resumption(registers: &Registers) -> (u64, u64) {
    let again = registers.rip.wrapping_sub(SYSCALL_BYTES);
    match interrupted(registers) {
        Some((number, -514..=-512)) => (number as u64, again),
        Some((_, ERESTART_RESTARTBLOCK)) => (libc::SYS_restart_syscall as u64, again),
        _ => (registers.rax, registers.rip),
    }
}

/// Calls that the kernel continues through a `restart_block`.
const CONTINUED: [i64; 4] = [
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_poll,
    libc::SYS_futex,
];

/// Bytes of code up to where a thread goes on after a system call that [`continued_call`] looks at: an instruction that
/// loads the number, and `syscall`.
pub const CODE_BYTES: usize = 9;

/// Whether the thread's call would be continued through a `restart_block`, and its number is still known.
#[must_use]
pub fn needs_block(registers: &Registers) -> bool {
    matches!(interrupted(registers), Some((number, ERESTART_RESTARTBLOCK)) if number != libc::SYS_restart_syscall)
}

/// Whether the thread is in restart_syscall(2).
#[must_use]
pub fn is_continued(registers: &Registers) -> bool {
    registers.orig_rax as i64 == libc::SYS_restart_syscall
}

/// The call that restart_syscall(2) stands for, by the code that made it: compilers and C libraries load the number
/// right before the `syscall` instruction.
#[must_use]
pub fn continued_call(code: [u8; CODE_BYTES]) -> Option<i64> {
    let number = match code {
        // mov $number, %eax; syscall
        [_, _, 0xb8, a, b, c, d, 0x0f, 0x05] => u32::from_le_bytes([a, b, c, d]),
        // mov $number, %rax; syscall
        [0x48, 0xc7, 0xc0, a, b, c, d, 0x0f, 0x05] => u32::from_le_bytes([a, b, c, d]),
        _ => return None,
    };
    CONTINUED
        .into_iter()
        .find(|call| *call == i64::from(number))
}

/// Registers with which a restored thread goes on like the saved one. `continued` is the call that restart_syscall(2)
/// stands for, if the thread is in that; where it is not known, the program sees EINTR, as after a signal.
#[must_use]
pub fn restorable(mut registers: Registers, continued: Option<i64>) -> Registers {
    if is_continued(&registers)
        && let Some(number) = continued
    {
        registers.orig_rax = number as u64;
    }
    let mut registers = undisturbed(registers);
    if let Some((number, ERESTART_RESTARTBLOCK)) = interrupted(&registers) {
        registers.rax = ERESTARTNOHAND as u64;
        match number {
            // nanosleep(request, remainder): the kernel has stored what is left to sleep.
            libc::SYS_nanosleep if registers.rsi != 0 => registers.rdi = registers.rsi,
            // clock_nanosleep(clock, flags, request, remainder)
            libc::SYS_clock_nanosleep
                if registers.rsi & TIMER_ABSTIME == 0 && registers.r10 != 0 =>
            {
                registers.rdx = registers.r10;
            }
            _ => {}
        }
    }
    registers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_call(number: i64, result: i64) -> Registers {
        Registers {
            orig_rax: number as u64,
            rax: result as u64,
            rip: 0x1002,
            rdi: 1,
            rsi: 0,
            rdx: 3,
            r10: 4,
            ..Registers::default()
        }
    }

    #[test]
    fn a_continued_call_is_made_again_under_its_own_number() {
        let [a, b, c, d] = (libc::SYS_poll as u32).to_le_bytes();
        assert_eq!(
            continued_call([0x90, 0x90, 0xb8, a, b, c, d, 0x0f, 0x05]),
            Some(libc::SYS_poll)
        );
        assert_eq!(
            continued_call([0x48, 0xc7, 0xc0, a, b, c, d, 0x0f, 0x05]),
            Some(libc::SYS_poll)
        );
        assert_eq!(
            continued_call([0x90, 0x90, 0xb8, 0, b, c, d, 0x0f, 0x05]),
            None,
            "read is never continued"
        );
        assert_eq!(continued_call([0x90; CODE_BYTES]), None);
        let continued = in_call(libc::SYS_restart_syscall, ERESTART_RESTARTBLOCK);
        let registers = restorable(continued, Some(libc::SYS_poll));
        assert_eq!(
            (registers.orig_rax as i64, registers.rax as i64),
            (libc::SYS_poll, ERESTARTNOHAND)
        );
    }

    #[test]
    fn what_the_kernel_restarts_is_left_alone() {
        for error in [-512, -513, -514] {
            let registers = in_call(libc::SYS_read, error);
            assert_eq!(restorable(registers, None), registers);
        }
        let fine = in_call(libc::SYS_read, 17);
        assert_eq!(restorable(fine, None), fine);
        let failed = in_call(libc::SYS_read, EINTR);
        assert_eq!(restorable(failed, None), failed);
    }

    #[test]
    fn without_the_kernel_a_call_is_made_again_from_its_instruction() {
        let resumed = resumption(&in_call(libc::SYS_read, -512));
        assert_eq!(resumed, (libc::SYS_read as u64, 0x1000));
        let resumed = resumption(&in_call(libc::SYS_nanosleep, ERESTART_RESTARTBLOCK));
        assert_eq!(resumed, (libc::SYS_restart_syscall as u64, 0x1000));
        assert_eq!(resumption(&in_call(libc::SYS_read, 17)), (17, 0x1002));
        let outside = in_call(-1, -512);
        assert_eq!(resumption(&outside), (outside.rax, 0x1002));
    }

    #[test]
    fn values_outside_a_call_are_no_errors() {
        let registers = in_call(-1, ERESTART_RESTARTBLOCK);
        assert_eq!(restorable(registers, None), registers);
        let registers = in_call(-1, EINTR);
        assert_eq!(undisturbed(registers), registers);
    }

    #[test]
    fn leaking_interruptions_are_hidden() {
        let registers = undisturbed(in_call(libc::SYS_epoll_wait, EINTR));
        assert_eq!(registers.rax as i64, ERESTARTNOHAND);
        assert_eq!(registers.rip, 0x1002);
    }

    #[test]
    fn sleeps_go_on_with_the_remainder() {
        let registers = restorable(
            in_call(libc::SYS_clock_nanosleep, ERESTART_RESTARTBLOCK),
            None,
        );
        assert_eq!((registers.rdx, registers.rax as i64), (4, ERESTARTNOHAND));
        let mut absolute = in_call(libc::SYS_clock_nanosleep, ERESTART_RESTARTBLOCK);
        absolute.rsi = TIMER_ABSTIME;
        assert_eq!(restorable(absolute, None).rdx, 3);
        // Without a place for the remainder the sleep starts over.
        let registers = restorable(in_call(libc::SYS_nanosleep, ERESTART_RESTARTBLOCK), None);
        assert_eq!(registers.rdi, 1);
        assert_eq!(undisturbed(in_call(libc::SYS_poll, -516)).rax as i64, -516);
    }
}
