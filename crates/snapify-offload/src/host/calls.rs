//! Calls in the way of COI: a function gets buffers, some bytes of data, and leaves some for its caller.

use super::{Pipeline, Process, Result};
use crate::layout::STORE_BASE;
use crate::wire::{CallHead, CallPlace, STATUS_DONE, pipeline};
use snapify_fabric::ring::MAX_PAYLOAD;

/// A call of a function of the type `void (uint32_t, void **, uint64_t *, void *, uint16_t, void *, uint16_t)`.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Address of the function.
    pub function: u64,
    /// What messages call it.
    pub name: &'a str,
    /// Address and length of each buffer.
    pub buffers: &'a [(u64, u64)],
    /// Data that goes with the call.
    pub misc: &'a [u8],
    /// Bytes that the function leaves for its caller.
    pub answer: u16,
}

impl Call<'_> {
    fn request(&self) -> Option<Vec<u8>> {
        let head = CallHead {
            buffers: u32::try_from(self.buffers.len()).ok()?,
            misc: u16::try_from(self.misc.len()).ok()?,
            answer: self.answer,
        };
        let mut request = Vec::with_capacity(CallHead::BYTES + head.rest_bytes() as usize);
        request.extend(head.to_bytes());
        for (address, length) in self.buffers {
            request.extend(address.to_ne_bytes());
            request.extend(length.to_ne_bytes());
        }
        request.extend(self.misc);
        Some(request)
    }
}

impl Pipeline {
    /// Calls a function and waits until it has returned: gives what it left for its caller.
    ///
    /// # Errors
    /// `ProcessDied` if the process dies before; `OutOfMemory` if a long call has no room on the card.
    pub fn call(&self, call: &Call<'_>) -> Result<Vec<u8>> {
        let (process, index) = self.place();
        let request = call.request().ok_or_else(|| {
            process.refused(
                format!("call {}", call.name),
                "it has too many arguments".into(),
            )
        })?;
        if request.len().max(usize::from(call.answer)) > MAX_PAYLOAD {
            return call_at(process, index, call, &request);
        }
        send(process, index, pipeline::CALL, call, &request, call.answer)
    }
}

/// A call that does not fit a record passes through a piece of the local store.
fn call_at(process: &Process, index: usize, call: &Call<'_>, request: &[u8]) -> Result<Vec<u8>> {
    let bytes = request.len() as u64;
    let answer = usize::from(call.answer);
    let offset = process.allocate(bytes + answer as u64)?;
    let place = CallPlace { offset, bytes };
    let called = process
        .copy_in(offset, request)
        .and_then(|()| {
            send(
                process,
                index,
                pipeline::CALL_AT,
                call,
                &place.to_bytes(),
                0,
            )
        })
        .and_then(|_| {
            let mut left = vec![0; answer];
            process.copy_out(offset + bytes, &mut left)?;
            Ok(left)
        });
    let freed = process.free(STORE_BASE + offset);
    let left = called?;
    freed.map(|()| left)
}

fn send(
    process: &Process,
    index: usize,
    kind: u32,
    call: &Call<'_>,
    payload: &[u8],
    answer: u16,
) -> Result<Vec<u8>> {
    let ring = process.ring(index);
    let answer = usize::from(answer);
    let ticket = process.submit(ring, kind, call.function, payload, answer, call.name)?;
    let reply = process.take(ring, ticket)?;
    if reply.status == STATUS_DONE {
        Ok(reply.payload)
    } else {
        let why = String::from_utf8_lossy(&reply.payload).into_owned();
        Err(process.refused(format!("call {}", call.name), why))
    }
}
