// POSIX shared memory: mapped by two processes, with and without a descriptor, in parts, larger than what has been written.
#include "check.h"

#define PAGE 4096L
#define BYTES (64 * PAGE)

static char *map(const char *name, long bytes, int keep) {
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0640);
    EXPECT(fd >= 0);
    EQUAL(ftruncate(fd, bytes), 0);
    char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT(at != MAP_FAILED);
    if (!keep) close(fd);
    return at;
}

int main(void) {
    char first[64], second[64];
    snprintf(first, sizeof first, "/snapify-test-%d-first", getpid());
    snprintf(second, sizeof second, "/snapify-test-%d-second", getpid());
    umask(0);
    volatile char *one = map(first, BYTES, 0);
    volatile char *two = map(second, 100, 1);
    one[3 * PAGE] = 'a';
    one[40 * PAGE] = 'b';
    two[5] = 'c';
    int child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (one[0] != 'g') usleep(1000);
        one[1] = 'h';
        _exit(0);
    }
    pause_here();

    EQUAL(one[3 * PAGE], 'a');
    EQUAL(one[40 * PAGE], 'b');
    EQUAL(one[50 * PAGE], 0);
    EQUAL(two[5], 'c');
    one[0] = 'g';
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    EQUAL(one[1], 'h');
    // Both are there under their names, as whoever opens them next finds them.
    struct stat stat;
    int fd = shm_open(first, O_RDWR, 0);
    EXPECT(fd >= 0);
    EQUAL(fstat(fd, &stat), 0);
    EQUAL(stat.st_size, BYTES);
    EQUAL(stat.st_mode & 0777, 0640);
    volatile char *again = mmap(0, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    EQUAL(again[1], 'h');
    EQUAL(shm_unlink(first), 0);
    EQUAL(shm_unlink(second), 0);
    return finish();
}
