//! What compiled code calls by itself: registration of images, data environments, target regions.

use std::ffi::c_void;

/// What a call that launches a target region returns when there is no device for it: the caller then runs the
/// region's own host version, in place.
const NOT_OFFLOADED: i32 = -1;

/// Exports functions that have nothing to do; a caller's arguments stay in registers that nobody reads.
macro_rules! nothing_to_do {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() {}
        )*
    };
}

/// Exports functions that launch a target region.
macro_rules! not_offloaded {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> i32 {
                NOT_OFFLOADED
            }
        )*
    };
}

nothing_to_do! {
    __kmpc_push_target_tripcount
    __kmpc_push_target_tripcount_mapper
    __tgt_init_all_rtls
    __tgt_interop_destroy
    __tgt_interop_init
    __tgt_interop_use
    __tgt_push_mapper_component
    __tgt_register_lib
    __tgt_register_requires
    __tgt_set_info_flag
    __tgt_target_data_begin
    __tgt_target_data_begin_mapper
    __tgt_target_data_begin_nowait
    __tgt_target_data_begin_nowait_mapper
    __tgt_target_data_end
    __tgt_target_data_end_mapper
    __tgt_target_data_end_nowait
    __tgt_target_data_end_nowait_mapper
    __tgt_target_data_update
    __tgt_target_data_update_mapper
    __tgt_target_data_update_nowait
    __tgt_target_data_update_nowait_mapper
    __tgt_target_nowait_query
    __tgt_unregister_lib
}

not_offloaded! {
    __tgt_target
    __tgt_target_kernel
    __tgt_target_kernel_nowait
    __tgt_target_kernel_replay
    __tgt_target_mapper
    __tgt_target_nowait
    __tgt_target_nowait_mapper
    __tgt_target_teams
    __tgt_target_teams_mapper
    __tgt_target_teams_nowait
    __tgt_target_teams_nowait_mapper
}

/// No mapper ever pushed a component.
#[unsafe(no_mangle)]
extern "C" fn __tgt_mapper_num_components(_handle: *mut c_void) -> i64 {
    0
}

/// Whether there was a device with this number whose description could be printed: there is none.
#[unsafe(no_mangle)]
extern "C" fn __tgt_print_device_info(_device: i64) -> i32 {
    0
}
