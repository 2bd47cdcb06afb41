//! Arrays of buffers, and messages made of them, of which a part has been transferred (readv(2), sendmsg(2)).

use super::transfer::bytes_of;
use crate::abi::Pod;
use crate::ids::Pid;
use snapify_sys::vm;

/// Words of `struct msghdr`: name and its length, buffers and their number, control data and its length, flags.
const HEADER_WORDS: usize = 7;
const BUFFERS: usize = 2;
const COUNT: usize = 3;
const CONTROL: usize = 4;
const CONTROL_BYTES: usize = 5;
const FLAGS: usize = 6;

type Header = [u64; HEADER_WORDS];

fn read<T: Pod>(pid: Pid, address: u64) -> Option<T> {
    let mut value = T::zeroed();
    vm::read_exact(pid.0, address, value.as_bytes_mut()).ok()?;
    Some(value)
}

fn buffers(pid: Pid, (address, count): (u64, u64)) -> Option<Vec<[u64; 2]>> {
    if count > libc::UIO_MAXIOV as u64 {
        return None;
    }
    let mut bytes = vec![0; count as usize * 16];
    vm::read_exact(pid.0, address, &mut bytes).ok()?;
    let mut all = Vec::with_capacity(count as usize);
    for buffer in bytes.chunks_exact(16) {
        let mut words = [0_u64; 2];
        words.as_bytes_mut().copy_from_slice(buffer);
        all.push(words);
    }
    Some(all)
}

/// What is left of these buffers behind the first `done` bytes, if anything is.
pub(super) fn buffers_left(pid: Pid, array: (u64, u64), done: u64) -> Option<Vec<[u64; 2]>> {
    let left = behind(&buffers(pid, array)?, done);
    (!left.is_empty()).then_some(left)
}

fn behind(buffers: &[[u64; 2]], mut done: u64) -> Vec<[u64; 2]> {
    let mut left = Vec::new();
    for &[address, bytes] in buffers {
        let skipped = done.min(bytes);
        done -= skipped;
        if skipped < bytes {
            left.push([address.wrapping_add(skipped), bytes - skipped]);
        }
    }
    left
}

/// Whether the last of `done` messages at this address (`struct mmsghdr`) has been sent completely, so that the next one is next.
pub(super) fn messages_left(pid: Pid, address: u64, done: u64) -> Option<()> {
    let last = address.checked_add(done.checked_sub(1)?.checked_mul(64)?)?;
    let [header @ .., sent] = read::<[u64; HEADER_WORDS + 1]>(pid, last)?;
    let all = buffers(pid, (header[BUFFERS], header[COUNT]))?;
    let sent = sent & u64::from(u32::MAX);
    behind(&all, sent).is_empty().then_some(())
}

/// The rest of a message.
pub(super) struct Message {
    header: Header,
    buffers: Vec<[u64; 2]>,
    /// Whether there is a place for control data.
    pub(super) has_control: bool,
}

impl Message {
    /// What is left of the message at this address behind its first `done` bytes. Control data goes with those.
    pub(super) fn left(pid: Pid, address: u64, done: u64) -> Option<Self> {
        let mut header: Header = read(pid, address)?;
        let buffers = buffers_left(pid, (header[BUFFERS], header[COUNT]), done)?;
        let has_control = header[CONTROL] != 0;
        header[COUNT] = buffers.len() as u64;
        header[CONTROL] = 0;
        header[CONTROL_BYTES] = 0;
        header[FLAGS] = 0;
        Some(Self {
            header,
            buffers,
            has_control,
        })
    }

    /// The message as it is at `address`: its buffers are listed behind it.
    pub(super) fn bytes(&self, address: u64) -> Vec<u8> {
        let mut header = self.header;
        header[BUFFERS] = address + size_of::<Header>() as u64;
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(bytes_of(&self.buffers));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_begins_in_the_middle_of_a_buffer() {
        let all = [[100, 10], [200, 0], [300, 20]];
        assert_eq!(behind(&all, 0), [[100, 10], [300, 20]]);
        assert_eq!(behind(&all, 4), [[104, 6], [300, 20]]);
        assert_eq!(behind(&all, 10), [[300, 20]]);
        assert_eq!(behind(&all, 29), [[319, 1]]);
        assert!(behind(&all, 30).is_empty());
    }
}
