//! Which device images this plugin takes.

/// `ET_DYN`: a shared object.
const SHARED_OBJECT: u16 = 3;
/// `EM_X86_64`.
const X86_64: u16 = 62;
/// Size of an ELF-64 header.
const HEADER: usize = 64;

/// Whether these are the bytes of a 64-bit, little-endian ELF shared object for x86-64 (elf(5)).
pub fn is_ours(image: &[u8]) -> bool {
    let Some(header) = image.first_chunk::<HEADER>() else {
        return false;
    };
    let half = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    // Magic, class 64, little endian; then type and machine.
    header.starts_with(b"\x7fELF\x02\x01") && half(16) == SHARED_OBJECT && half(18) == X86_64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u8, machine: u8) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16] = kind;
        bytes[18] = machine;
        bytes
    }

    #[test]
    fn takes_shared_objects_of_this_machine_only() {
        assert!(is_ours(&header(3, 62)));
        assert!(!is_ours(&header(2, 62)), "an executable");
        assert!(!is_ours(&header(3, 183)), "an image for aarch64");
        assert!(!is_ours(&header(3, 62)[..63]), "a truncated header");
        assert!(!is_ours(&[]));
        let bitcode = [b"BC\xc0\xde".as_slice(), &[0; 64]].concat();
        assert!(!is_ours(&bitcode));
    }
}
