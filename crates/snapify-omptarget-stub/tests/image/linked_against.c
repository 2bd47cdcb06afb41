/* What the image is linked against: its libomptarget.so.16 with versioned names, as the compiler's own has them. */
#define NAME(name) void name(void) {}
NAME(omp_get_num_devices)
NAME(omp_get_initial_device)
NAME(omp_target_alloc)
NAME(omp_target_free)
NAME(omp_target_is_present)
NAME(omp_target_memcpy)
NAME(omp_target_memcpy_rect)
NAME(__tgt_target_kernel)
NAME(__tgt_target_data_begin_mapper)
