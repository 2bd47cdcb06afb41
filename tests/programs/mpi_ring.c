// A job of MPI: every process sends to the next one, short and long messages in turn, and all agree on a number now and then.
// The first prints what has come of it.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONG = 20000, SHORT = 16 };

int main(int argc, char **argv) {
    int rank, size, rounds = argc > 1 ? atoi(argv[1]) : 1000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    unsigned *out = malloc(LONG * sizeof *out), *in = malloc(LONG * sizeof *in);
    unsigned state = (unsigned)rank + 1, all;
    for (int round = 0; round < rounds; round++) {
        int count = round % 3 ? SHORT : LONG;
        for (int i = 0; i < count; i++) out[i] = state = state * 1664525u + 1013904223u;
        MPI_Sendrecv(out, count, MPI_UNSIGNED, (rank + 1) % size, 0, in, count, MPI_UNSIGNED,
                     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < count; i++) state = state * 31 + in[i];
        if (round % 50 == 0) {
            MPI_Allreduce(&state, &all, 1, MPI_UNSIGNED, MPI_BXOR, MPI_COMM_WORLD);
            state ^= all;
        }
    }
    MPI_Reduce(&state, &all, 1, MPI_UNSIGNED, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%u\n", all);
    MPI_Finalize();
    return 0;
}
