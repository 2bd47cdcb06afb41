//! Calls in the way of COI: a function gets buffers with their lengths, some bytes of data, and room for what it leaves for
//! its caller.

use crate::wire::{CallHead, CallPlace};
use snapify_fabric::Mapping;
use std::ffi::c_void;

/// A run function of COI: buffers, their addresses and lengths; data; room for the answer.
type Function =
    unsafe extern "C" fn(u32, *mut *mut c_void, *mut u64, *mut c_void, u16, *mut c_void, u16);

/// Most buffers of a call (`COI_PIPELINE_MAX_IN_BUFFERS`).
pub const MAX_BUFFERS: u32 = 16_384;

/// A call whose arguments are this process's own memory now.
#[derive(Debug)]
pub struct Call {
    head: CallHead,
    addresses: Vec<u64>,
    lengths: Vec<u64>,
    /// Words, so that the function may find anything in it.
    misc: Vec<u64>,
    answer: Vec<u64>,
    /// Where in the store the answer goes, if not into the record.
    place: Option<u64>,
}

impl Call {
    /// Reads a request.
    pub fn read(request: &[u8]) -> Option<Self> {
        let head = CallHead::parse(request).filter(|head| head.buffers <= MAX_BUFFERS)?;
        let (buffers, data) = request
            .get(CallHead::BYTES..)?
            .split_at_checked(head.buffers as usize * CallHead::BUFFER)?;
        let words = buffers
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        let (mut addresses, mut lengths) = (Vec::new(), Vec::new());
        for (index, word) in words.enumerate() {
            if index % 2 == 0 {
                addresses.push(word);
            } else {
                lengths.push(word);
            }
        }
        let misc = data.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        });
        Some(Self {
            head,
            addresses,
            lengths,
            misc: misc.collect(),
            answer: vec![0; usize::from(head.answer).div_ceil(8)],
            place: None,
        })
    }

    /// Reads a request that lies in the store.
    pub fn read_at(store: &Mapping, payload: &[u8]) -> Option<Self> {
        const MOST: u64 =
            (CallHead::BYTES + MAX_BUFFERS as usize * CallHead::BUFFER + u16::MAX as usize) as u64;
        let place = CallPlace::parse(payload).filter(|place| place.bytes <= MOST)?;
        let mut request = vec![0; place.bytes as usize];
        store.read(place.offset, &mut request).ok()?;
        let mut call = Self::read(&request)?;
        let behind = place.offset.checked_add(place.bytes)?;
        store.range(behind, u64::from(call.head.answer)).ok()?;
        call.place = Some(behind);
        Some(call)
    }

    /// Calls the function.
    ///
    /// # Safety
    /// `function` must be the address of a function of that type.
    pub unsafe fn run(&mut self, function: u64) {
        fn pointer(words: &mut [u64]) -> *mut c_void {
            if words.is_empty() {
                std::ptr::null_mut()
            } else {
                words.as_mut_ptr().cast()
            }
        }
        // SAFETY: the caller vouches for it; a pointer to a function is an address.
        let function = unsafe { std::mem::transmute::<usize, Function>(function as usize) };
        // SAFETY: as above; the arrays are as long as is told.
        unsafe {
            function(
                self.head.buffers,
                pointer(&mut self.addresses).cast(),
                pointer(&mut self.lengths).cast(),
                pointer(&mut self.misc),
                self.head.misc,
                pointer(&mut self.answer),
                self.head.answer,
            );
        }
    }

    /// Leaves the answer where its caller expects it: what is returned belongs into the record.
    pub fn publish(self, store: &Mapping) -> Vec<u8> {
        let mut bytes: Vec<u8> = self
            .answer
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        bytes.truncate(usize::from(self.head.answer));
        match self.place {
            None => bytes,
            Some(place) => {
                // Inside, as was seen when the request was read.
                let _ = store.write(place, &bytes);
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn function(
        count: u32,
        buffers: *mut *mut c_void,
        lengths: *mut u64,
        misc: *mut c_void,
        misc_bytes: u16,
        answer: *mut c_void,
        answer_bytes: u16,
    ) {
        // SAFETY: as the arguments tell.
        unsafe {
            assert_eq!((count, *lengths, *lengths.add(1)), (2, 10, 20));
            assert_eq!(*buffers.add(1) as u64, 0x2000);
            let misc = std::slice::from_raw_parts(misc.cast::<u8>(), usize::from(misc_bytes));
            assert_eq!(answer_bytes, misc_bytes);
            answer.cast::<u8>().copy_from(misc.as_ptr(), misc.len());
        }
    }

    fn request(misc: &[u8]) -> Vec<u8> {
        let head = CallHead {
            buffers: 2,
            misc: misc.len() as u16,
            answer: misc.len() as u16,
        };
        let mut request = head.to_bytes().to_vec();
        for word in [0x1000_u64, 10, 0x2000, 20] {
            request.extend(word.to_ne_bytes());
        }
        request.extend(misc);
        request
    }

    #[test]
    fn arguments_arrive_and_the_answer_comes_back() {
        for misc in [&b"hello, card"[..], &[7; 8], &[9; 4000]] {
            let mut call = Call::read(&request(misc)).unwrap();
            // SAFETY: a function of that type.
            unsafe { call.run(function as *const () as u64) };
            let answer: Vec<u8> = call.answer.iter().flat_map(|w| w.to_ne_bytes()).collect();
            assert_eq!(&answer[..misc.len()], misc);
        }
    }

    #[test]
    fn a_request_of_another_length_than_it_tells_is_refused() {
        let request = request(b"hello");
        for length in 0..request.len() {
            assert!(Call::read(&request[..length]).is_none(), "{length}");
        }
        let mut longer = request.clone();
        longer.push(0);
        assert!(Call::read(&longer).is_none());
        let mut many = request;
        many[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(Call::read(&many).is_none());
    }
}
