/* A tree that is never still: a ring of processes that pass a token and look whether their memory is what it was. With the
 * argument "churn" each of them also forks, executes, makes threads and maps and unmaps memory all the time. Says how far it
 * has come for each line of standard input; at the end of that it ends, and says "fine" if all was well everywhere. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 4, MEMORY = 4 << 20 };

static unsigned char *memory;
static unsigned seed;

static unsigned char value(size_t at) { return (unsigned char)((at * 2654435761u + seed) >> 13); }

static void fail(int line) {
    fprintf(stderr, "line %d: process %d fails\n", line, getpid());
    _exit(1);
}

static void look(unsigned round) {
    for (size_t at = round % 4096; at < MEMORY; at += 4096)
        if (memory[at] != value(at)) fail(__LINE__);
}

static void *thread(void *argument) { return argument; }

static void churn(unsigned round, char *self) {
    size_t bytes = (1 + round % 16) * 4096;
    char *pages = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) fail(__LINE__);
    memset(pages, (int)round, bytes);
    pthread_t id;
    void *back;
    if (pthread_create(&id, 0, thread, pages) != 0) fail(__LINE__);
    pid_t child = fork();
    if (child == 0) {
        if (round % 2) _exit(7);
        execl(self, self, "child", (char *)0);
        _exit(8);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) fail(__LINE__);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) fail(__LINE__);
    if (pthread_join(id, &back) != 0 || back != pages) fail(__LINE__);
    if (pages[bytes - 1] != (char)round || munmap(pages, bytes) != 0) fail(__LINE__);
}

static void fill(unsigned with) {
    seed = with;
    memory = malloc(MEMORY);
    for (size_t at = 0; at < MEMORY; at++) memory[at] = value(at);
}

int main(int argc, char **argv) {
    const int churns = argc > 1 && strcmp(argv[1], "churn") == 0;
    if (argc > 1 && !churns) return 7;
    int ring[PROCESSES + 1][2];
    for (int i = 0; i <= PROCESSES; i++)
        if (pipe(ring[i]) != 0) return __LINE__;
    for (int i = 0; i < PROCESSES; i++) {
        if (fork() != 0) continue;
        fill((unsigned)i * 77);
        for (int round = 0;; round++) {
            int token;
            if (read(ring[i][0], &token, sizeof token) != sizeof token) fail(__LINE__);
            look((unsigned)round);
            if (churns) churn((unsigned)round, argv[0]);
            const int next = token < 0 ? token : token + 1;
            if (write(ring[i + 1][1], &next, sizeof next) != sizeof next) fail(__LINE__);
            if (token < 0) _exit(0);
        }
    }
    fill(12345);
    puts("ready");
    fflush(stdout);
    int token = 0;
    for (int round = 1;; round++) {
        struct pollfd input = {.fd = 0, .events = POLLIN};
        // It leaves some time to others.
        if (poll(&input, 1, 2) > 0) {
            char line[64];
            const ssize_t count = read(0, line, sizeof line);
            if (count < 0) fail(__LINE__);
            if (count == 0) token = -1;
            else printf("round %d\n", round);
            fflush(stdout);
        }
        if (write(ring[0][1], &token, sizeof token) != sizeof token) fail(__LINE__);
        int back;
        if (read(ring[PROCESSES][0], &back, sizeof back) != sizeof back) fail(__LINE__);
        if (token < 0) break;
        if (back != token + PROCESSES) fail(__LINE__);
        token = back % 1000000;
        look((unsigned)round);
        if (churns) churn((unsigned)round, argv[0]);
    }
    int status, ended = 0;
    while (wait(&status) > 0) {
        if (status != 0) fail(__LINE__);
        ended++;
    }
    if (ended != PROCESSES) fail(__LINE__);
    puts("fine");
    return 0;
}
