//! Machine code that threads execute by themselves, put together from the few instructions that are needed for it.

use super::SYSCALL;

/// Numbers of registers in instructions.
pub(crate) type Register = u8;
pub(crate) const EAX: Register = 0;
pub(crate) const RAX: Register = 0;
pub(crate) const RDX: Register = 2;
pub(crate) const EDX: Register = 2;
pub(crate) const RSP: Register = 4;
pub(crate) const RSI: Register = 6;
pub(crate) const ESI: Register = 6;
pub(crate) const RDI: Register = 7;
pub(crate) const EDI: Register = 7;
pub(crate) const R10: Register = 10;

/// Instructions, as they are put together; places are offsets from their beginning.
#[derive(Default)]
pub(crate) struct Code(pub(crate) Vec<u8>);

impl Code {
    /// `mov $value, %register` (32 bits, zero extended)
    pub(crate) fn load(&mut self, register: Register, value: u32) {
        if register >= 8 {
            self.0.push(0x41);
        }
        self.0.push(0xb8 | register & 7);
        self.0.extend(value.to_le_bytes());
    }

    /// `mov place(%rip), %register`
    pub(crate) fn fetch(&mut self, register: Register, place: usize) {
        self.relative(0x8b, register, place);
    }

    /// `lea place(%rip), %register`
    pub(crate) fn address(&mut self, register: Register, place: usize) {
        self.relative(0x8d, register, place);
    }

    /// `add place(%rip), %register`
    pub(crate) fn add(&mut self, register: Register, place: usize) {
        self.relative(0x03, register, place);
    }

    fn relative(&mut self, operation: u8, register: Register, place: usize) {
        let prefix = if register >= 8 { 0x4c } else { 0x48 };
        self.0
            .extend([prefix, operation, 0x05 | (register & 7) << 3]);
        self.displacement(place);
    }

    /// `mov $number, %eax; syscall`
    pub(crate) fn call(&mut self, number: i64) {
        self.load(EAX, number as u32);
        self.0.extend(SYSCALL);
    }

    /// `jmp *place(%rip)`
    pub(crate) fn jump(&mut self, place: usize) {
        self.0.extend([0xff, 0x25]);
        self.displacement(place);
    }

    /// `movb $0, place(%rip)`
    pub(crate) fn clear_byte(&mut self, place: usize) {
        self.0.extend([0xc6, 0x05]);
        // The operand comes behind the displacement.
        let distance = place as i32 - (self.0.len() as i32 + 5);
        self.0.extend(distance.to_le_bytes());
        self.0.push(0);
    }

    /// The distance of a place from the end of the instruction, which it ends.
    fn displacement(&mut self, place: usize) {
        let end = self.0.len() + 4;
        let distance = place as i32 - end as i32;
        self.0.extend(distance.to_le_bytes());
    }
}
