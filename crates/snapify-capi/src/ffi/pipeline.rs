//! Pipelines.

use super::engine::engine_of;
use super::{Completion, guarded, matching, named, put, required};
use crate::abi::{Access, CoiEvent, MAX_BUFFERS, MAX_MISC, MIN_STACK};
use crate::buffer::Buffer;
use crate::error::{Code, Failure};
use crate::event::Event;
use crate::host::host;
use crate::memory::Lent;
use crate::pipeline::{Job, Pipeline};
use crate::work::Dependencies;
use snapify_offload::host::Call;
use std::ffi::c_void;
use std::sync::{Arc, PoisonError};

/// A set of hardware threads (`COI_CPU_MASK`).
type CpuMask = [u64; 16];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIPipelineCreate(
    process: u64,
    mask: *const CpuMask,
    stack: u32,
    pipeline: *mut u64,
) -> i32 {
    guarded("COIPipelineCreate", || {
        required(pipeline)?;
        let host = host()?;
        let found = host.processes.get(process)?;
        if stack > 0 && (stack < MIN_STACK || !stack.is_multiple_of(4096)) {
            return Err(Code::OutOfRange.into());
        }
        // SAFETY: by the interface's contract.
        let mask = unsafe { mask.as_ref() };
        if mask.is_some_and(|mask| mask.iter().all(|word| *word == 0)) {
            return Err(Code::OutOfRange.into());
        }
        let handle = host.pipelines.add(Pipeline::new(process, &found)?);
        // SAFETY: by the interface's contract.
        unsafe { put(pipeline, handle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn COIPipelineDestroy(pipeline: u64) -> i32 {
    guarded("COIPipelineDestroy", || {
        host()?.pipelines.remove(pipeline)?.close();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIPipelineGetEngine(pipeline: u64, engine: *mut u64) -> i32 {
    guarded("COIPipelineGetEngine", || {
        required(engine)?;
        let found = host()?.pipelines.get(pipeline)?;
        found.process.offload.status()?;
        // SAFETY: by the interface's contract.
        unsafe { put(engine, engine_of(found.process.offload.card())) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIPipelineSetCPUMask(
    process: u64,
    core: u32,
    thread: u8,
    mask: *mut CpuMask,
) -> i32 {
    guarded("COIPipelineSetCPUMask", || {
        required(mask)?;
        host()?.processes.get(process)?;
        // A core has one thread here.
        if core as usize >= 64 * 16 || thread != 0 {
            return Err(Code::OutOfRange.into());
        }
        // SAFETY: by the interface's contract.
        unsafe { (*mask)[core as usize / 64] |= 1 << (core % 64) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIPipelineClearCPUMask(mask: *mut CpuMask) -> i32 {
    guarded("COIPipelineClearCPUMask", || {
        required(mask)?;
        // SAFETY: by the interface's contract.
        unsafe { put(mask, [0; 16]) };
        Ok(())
    })
}

/// A buffer of a function.
struct Use {
    buffer: Arc<Buffer>,
    place: usize,
    address: u64,
    access: Access,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIPipelineRunFunction(
    pipeline: u64,
    function: u64,
    buffer_count: u32,
    buffers: *const u64,
    access: *const i32,
    event_count: u32,
    events: *const CoiEvent,
    misc: *const c_void,
    misc_length: u16,
    answer: *mut c_void,
    answer_length: u16,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIPipelineRunFunction", || {
        if buffer_count > MAX_BUFFERS || misc_length > MAX_MISC {
            return Err(Code::OutOfRange.into());
        }
        let host = host()?;
        let pipeline = host.pipelines.get(pipeline)?;
        let function = host.functions.get(function)?;
        if function.process != pipeline.process_handle {
            let text = "the function is one of another process";
            return Err(Failure::new(Code::InvalidHandle, text));
        }
        pipeline.process.offload.status()?;
        // SAFETY: by the interface's contract.
        let (buffers, access, misc, named) = unsafe {
            (
                matching(buffers, buffer_count as usize)?,
                matching(access, buffer_count as usize)?,
                matching(misc.cast::<u8>(), usize::from(misc_length))?.to_vec(),
                named(host, event_count, events)?,
            )
        };
        if answer.is_null() != (answer_length == 0) {
            return Err(Code::ArgumentMismatch.into());
        }
        // SAFETY: by the interface's contract it stays valid until the completion.
        let answer = unsafe { Lent::new(answer.cast(), usize::from(answer_length)) };
        let mut uses = Vec::new();
        for (handle, access) in buffers.iter().zip(access) {
            let buffer = host.buffers.get(*handle)?;
            let place = buffer.place_of(pipeline.process_handle)?;
            if buffer.is_mapped() {
                let text = "a buffer of the function is mapped";
                return Err(Failure::new(Code::Retry, text));
            }
            uses.push(Use {
                address: buffer.address(place)?,
                access: Access::parse(*access)?,
                buffer,
                place,
            });
        }
        let done = Event::new();
        let completion = Completion::parse(completion);
        let entered = {
            let _ordering = host.ordering.lock().unwrap_or_else(PoisonError::into_inner);
            let mut implied = Vec::new();
            let ordered = uses.iter().try_for_each(|used| {
                implied.extend(used.buffer.enter(&done, used.access.writes)?);
                Ok::<_, Failure>(())
            });
            ordered.and_then(|()| {
                let lane = pipeline.clone();
                let body = move || {
                    for used in &uses {
                        let Use { buffer, place, .. } = used;
                        if used.access.reads {
                            buffer.bring(*place, 0, buffer.size)?;
                        }
                        if used.access.writes {
                            buffer.written(*place, 0, buffer.size);
                        }
                        if used.access.refers {
                            lane.process.offload.refer(used.address)?;
                        }
                    }
                    let passed: Vec<_> = uses
                        .iter()
                        .map(|used| (used.address, used.buffer.size))
                        .collect();
                    let left = lane.lane.call(&Call {
                        function: function.address,
                        name: &function.name,
                        buffers: &passed,
                        misc: &misc,
                        answer: answer_length,
                    })?;
                    answer.fill(&left);
                    Ok(())
                };
                let job = Job {
                    dependencies: Dependencies { named, implied },
                    done: done.clone(),
                    body: Box::new(body),
                };
                pipeline.enter(job, completion.waits())
            })
        };
        let place = entered.inspect_err(|failure| {
            // Others may be behind it already.
            done.fire(Err(failure.code));
        })?;
        // SAFETY: by the interface's contract.
        unsafe { completion.tell(host, &done) };
        pipeline.finish(place)
    })
}
