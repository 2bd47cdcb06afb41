/* Stands for a device image that does call libomptarget. check() gives 0, or the line of what went wrong. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int omp_get_num_devices(void);
int omp_get_initial_device(void);
void *omp_target_alloc(size_t, int);
void omp_target_free(void *, int);
int omp_target_is_present(const void *, int);
int omp_target_memcpy(void *, const void *, size_t, size_t, size_t, int, int);
int omp_target_memcpy_rect(void *, const void *, size_t, int, const size_t *, const size_t *, const size_t *, const size_t *,
                           const size_t *, int, int);
int __tgt_target_kernel(void *, int64_t, int32_t, int32_t, void *, void *);
void __tgt_target_data_begin_mapper(void *, int64_t, int32_t, void **, void **, int64_t *, int64_t *, void **, void **);

#define CHECK(condition) \
    if (!(condition)) return __LINE__

int check(void) {
    CHECK(omp_get_num_devices() == 0 && omp_get_initial_device() == 0);
    int a[3][4][5], b[4][5][6];
    for (int i = 0; i < 60; i++) (&a[0][0][0])[i] = i;
    memset(b, 0, sizeof b);
    const size_t volume[] = {2, 3, 4}, from[] = {1, 0, 1}, to[] = {2, 1, 0}, sides_a[] = {3, 4, 5}, sides_b[] = {4, 5, 6};
    CHECK(omp_target_memcpy_rect(NULL, NULL, 4, 3, volume, to, from, sides_b, sides_a, 0, 0) >= 3);
    CHECK(omp_target_memcpy_rect(b, NULL, 4, 3, volume, to, from, sides_b, sides_a, 0, 0) != 0);
    CHECK(omp_target_memcpy_rect(b, a, 4, 3, volume, to, from, sides_b, sides_a, 0, 0) == 0);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 5; j++)
            for (int k = 0; k < 6; k++) {
                int in = i >= 2 && j >= 1 && j < 4 && k < 4;
                CHECK(b[i][j][k] == (in ? a[i - 1][j - 1][k + 1] : 0));
            }
    char *memory = omp_target_alloc(100, 0);
    CHECK(memory && omp_target_is_present(memory, 0));
    CHECK(omp_target_memcpy(memory, "snapshot", 5, 1, 4, 0, 0) == 0 && memcmp(memory + 1, "shot", 5) == 0);
    omp_target_free(memory, 0);
    __tgt_target_data_begin_mapper(NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL);
    CHECK(__tgt_target_kernel(NULL, 0, 0, 0, NULL, NULL) != 0);
    return 0;
}
