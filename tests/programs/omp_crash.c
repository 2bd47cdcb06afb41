/* A target region that crashes, in a function of its own. What it says on standard error must name card and function.
 * usage: omp_crash [DEVICE] */
#include <stdio.h>
#include <stdlib.h>

static void faulty(int device) {
    #pragma omp target device(device)
    {
        volatile int *nowhere = (volatile int *)16;
        *nowhere = 1;
    }
}

int main(int argc, char **argv) {
    int device = argc > 1 ? atoi(argv[1]) : 0, before = 0;
    #pragma omp target device(device) map(from : before)
    before = 1;
    printf("a region ran: %d\n", before);
    fflush(stdout);
    faulty(device);
    printf("the program went on after its region crashed\n");
    return 0;
}
