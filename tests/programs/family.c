/* Fills MEBIBYTES of memory, forks CHILDREN, each of which writes to one page in a hundred, says "ready", and waits for its
 * standard input: at "check" all look through their memory; at its end they end. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

static uint64_t *memory;
static size_t words;

// A value that no other word of any process has, and that does not compress.
static uint64_t value(size_t word, uint64_t writer) {
    uint64_t z = word * UINT64_C(0x9e3779b97f4a7c15) + writer;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int is_own(size_t word, uint64_t writer) {
    return writer != 0 && word / 512 % 100 == writer;
}

static int is_whole(uint64_t writer) {
    for (size_t word = 0; word < words; word++) {
        if (memory[word] != value(word, is_own(word, writer) ? writer : 0)) return 0;
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const size_t bytes = strtoull(argv[1], 0, 10) << 20;
    const int children = atoi(argv[2]);
    words = bytes / sizeof *memory;
    memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return __LINE__;
    for (size_t word = 0; word < words; word++) memory[word] = value(word, 0);
    int start[2], ready[2];
    if (pipe(start) || pipe(ready)) return __LINE__;
    for (int child = 1; child <= children; child++) {
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(start[1]);
            for (size_t word = 0; word < words; word++) {
                if (is_own(word, child)) memory[word] = value(word, child);
            }
            if (write(ready[1], "r", 1) != 1) _exit(2);
            char told;
            const int asked = read(start[0], &told, 1) == 1;
            _exit(asked && !is_whole(child) ? 3 : 0);
        }
    }
    char byte;
    for (int child = 0; child < children; child++) {
        if (read(ready[0], &byte, 1) != 1) return __LINE__;
    }
    puts("ready");
    fflush(stdout);
    char line[64];
    int whole = 1;
    while (fgets(line, sizeof line, stdin)) {
        whole &= is_whole(0);
        for (int child = 0; child < children; child++) {
            if (write(start[1], "c", 1) != 1) return __LINE__;
        }
    }
    close(start[1]);
    for (int child = 0; child < children; child++) {
        int status;
        if (wait(&status) < 0) return __LINE__;
        whole &= status == 0;
    }
    puts(whole ? "whole" : "damaged");
    return !whole;
}
