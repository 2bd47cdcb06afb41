/* A program that has children while it works on a card: a copy of itself that computes for it (made by fork, so that it has
 * inherited all that belongs to the card), and a command of the shell that packs what it writes (made by popen).
 * Says "round N" for each of its rounds and in the end "digest X".
 * usage: omp_children ROUNDS FILE */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 65536

static int all_of(int fd, void *data, size_t bytes, int out) {
    for (char *at = data; bytes > 0;) {
        ssize_t done = out ? write(fd, at, bytes) : read(fd, at, bytes);
        if (done <= 0) return 0;
        at += done;
        bytes -= (size_t)done;
    }
    return 1;
}

/* What the child does with each number. */
static uint64_t mixed(uint64_t x) {
    for (int i = 0; i < 1000; i++) x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: omp_children ROUNDS FILE\n");
        return 2;
    }
    const long rounds = atol(argv[1]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    static uint64_t data[N];
    for (long i = 0; i < N; i++) data[i] = (uint64_t)i * 2654435761u;
    #pragma omp target enter data map(to : data)

    int there[2], back[2];
    if (pipe(there) || pipe(back)) return 1;
    pid_t helper = fork();
    if (helper == 0) {
        close(there[1]);
        close(back[0]);
        for (uint64_t x; all_of(there[0], &x, sizeof x, 0);) {
            x = mixed(x);
            if (!all_of(back[1], &x, sizeof x, 1)) _exit(1);
        }
        _exit(7);
    }
    close(there[0]);
    close(back[1]);
    char command[4096];
    snprintf(command, sizeof command, "sed s/^/packed./ >%s", argv[2]);
    FILE *packer = popen(command, "w");
    if (!packer) return 1;

    uint64_t digest = 0;
    for (long round = 0; round < rounds; round++) {
        uint64_t sum = 0;
        #pragma omp target map(tofrom : sum)
        for (int turn = 0; turn < 64; turn++)
            for (long i = 0; i < N; i++) {
                data[i] = data[i] * 6364136223846793005u + (uint64_t)round;
                sum += data[i] >> 7;
            }
        if (!all_of(there[1], &sum, sizeof sum, 1) || !all_of(back[0], &sum, sizeof sum, 0)) return 1;
        digest = digest * 31 + sum;
        fprintf(packer, "%ld %016" PRIx64 "\n", round, sum);
        printf("round %ld\n", round);
    }
    #pragma omp target exit data map(delete : data)
    close(there[1]);
    int status = 0, packed = pclose(packer);
    if (waitpid(helper, &status, 0) != helper || WEXITSTATUS(status) != 7 || packed != 0) {
        fprintf(stderr, "omp_children: a child ended with %x, the other with %x\n", status, packed);
        return 1;
    }
    printf("digest %016" PRIx64 "\n", digest);
    return 0;
}
