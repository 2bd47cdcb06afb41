/* Run on a card of 64 MiB: takes what fits, is refused what does not, and gets memory again once it was freed. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1024 * 1024)

static int failures;

static void expect(const char *what, int ok) {
    printf("%-48s %s\n", what, ok ? "ok" : "FAILED");
    failures += !ok;
}

int main(void) {
    const int card = omp_get_default_device();
    void *fits = omp_target_alloc(40 * MIB, card);
    expect("40 of 64 MiB", fits != NULL);
    expect("another 40 MiB are refused", omp_target_alloc(40 * MIB, card) == NULL);
    omp_target_free(fits, card);
    void *again = omp_target_alloc(40 * MIB, card);
    expect("40 MiB after they were freed", again != NULL);
    omp_target_free(again, card);
    int refused = 0;
    #pragma omp target map(from : refused)
    {
        char *volatile private = malloc(200 * MIB); /* volatile: or the compiler knows better */
        refused = private == NULL;
        free(private);
    }
    expect("200 MiB from malloc on the card are refused", refused);
    return failures != 0;
}
