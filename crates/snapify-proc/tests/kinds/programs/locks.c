// Locks of files: several on one file, by all calls, through descriptors that others share or that cannot take them.
#include "check.h"

static struct flock range(int type, long start, long length) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
}

// What somebody else would find in his way: the type and range of the first lock in [start, start + length).
static struct flock found(const char *path, int type, long start, long length) {
    struct flock lock = range(type, start, length);
    int answer[2];
    if (pipe(answer)) exit(1);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR);
        if (fcntl(fd, F_GETLK, &lock) || write(answer[1], &lock, sizeof lock) != sizeof lock) _exit(1);
        _exit(0);
    }
    close(answer[1]);
    EQUAL(read(answer[0], &lock, sizeof lock), sizeof lock);
    waitpid(child, NULL, 0);
    close(answer[0]);
    return lock;
}

#define FINDS(path, wanted, from, length, type, at, many)                         \
    do {                                                                          \
        struct flock lock = found(path, wanted, from, length);                    \
        EQUAL(lock.l_type, type);                                                 \
        if (lock.l_type != F_UNLCK) EXPECT(lock.l_start == at && lock.l_len == many); \
    } while (0)

static int flocked(const char *path, int how) {
    pid_t child = fork();
    if (child == 0) _exit(flock(open(path, O_RDONLY), how | LOCK_NB) != 0);
    int status;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}

static volatile int waiting;
static const char *waited_for;
static pthread_barrier_t barrier;

static void *waiter(void *number) {
    int n = (int)(long)number;
    int fd = open(waited_for, O_RDWR);
    struct flock lock = range(F_WRLCK, 500, 10);
    pthread_barrier_wait(&barrier);
    if (n == 0) EQUAL(fcntl(fd, F_OFD_SETLKW, &lock), 0);
    else EQUAL(flock(fd, LOCK_EX), 0);
    waiting++;
    return NULL;
}

static void check(int own, int dup_of) {
    FINDS("ranges", F_WRLCK, 0, 0, F_WRLCK, 10, 10);
    FINDS("ranges", F_WRLCK, 20, 0, F_RDLCK, 30, 5);
    FINDS("ranges", F_RDLCK, 20, 80, F_UNLCK, 0, 0);
    FINDS("ranges", F_RDLCK, 100, 0, F_WRLCK, 100, 0);
    FINDS("ofd", F_WRLCK, 0, 0, F_WRLCK, 0, 1);
    FINDS("ofd", F_RDLCK, 1, 0, F_UNLCK, 0, 0);
    FINDS("ofd", F_WRLCK, 1, 0, F_RDLCK, 5, 5);
    EXPECT(flocked("flock", LOCK_SH) && flocked("shared", LOCK_EX) && !flocked("shared", LOCK_SH));
    // A copy of the descriptor stands for the same lock.
    EQUAL(flock(dup_of, LOCK_EX | LOCK_NB), 0);
    struct flock lock = range(F_WRLCK, 0, 1);
    EQUAL(fcntl(own, F_OFD_GETLK, &lock), 0);
    EQUAL(lock.l_type, F_UNLCK);
}

int main(void) {
    const char *files[] = {"ranges", "ofd", "flock", "shared", "held", "held-too"};
    for (int i = 0; i < 6; i++) close(open(files[i], O_RDWR | O_CREAT, 0644));

    // The read-only one comes first, and shows the same locks.
    int reader = open("ranges", O_RDONLY), writer = open("ranges", O_WRONLY), place = open("ranges", O_PATH);
    struct flock locks[] = {range(F_WRLCK, 10, 10), range(F_RDLCK, 30, 5), range(F_WRLCK, 100, 0)};
    EQUAL(fcntl(writer, F_SETLK, &locks[0]), 0);
    EQUAL(fcntl(reader, F_SETLK, &locks[1]), 0);
    EQUAL(fcntl(writer, F_SETLK, &locks[2]), 0);
    int ofd = open("ofd", O_RDWR), ofd_too = open("ofd", O_RDONLY);
    struct flock first = range(F_WRLCK, 0, 1), second = range(F_RDLCK, 5, 5);
    EQUAL(fcntl(ofd, F_OFD_SETLK, &first), 0);
    EQUAL(fcntl(ofd_too, F_OFD_SETLK, &second), 0);
    int exclusive = open("flock", O_RDONLY), copy = dup(exclusive), shared = open("shared", O_RDONLY);
    EQUAL(flock(exclusive, LOCK_EX), 0);
    EQUAL(flock(shared, LOCK_SH), 0);

    // Threads wait for locks that another description has.
    int held = open("held", O_RDWR), held_too = open("held-too", O_RDWR);
    struct flock middle = range(F_WRLCK, 500, 10);
    EQUAL(fcntl(held, F_OFD_SETLK, &middle), 0);
    EQUAL(flock(held_too, LOCK_EX), 0);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t threads[2];
    for (long i = 0; i < 2; i++) {
        waited_for = i == 0 ? "held" : "held-too";
        pthread_create(&threads[i], NULL, waiter, (void *)i);
        pthread_barrier_wait(&barrier);
    }
    check(ofd, copy);
    pause_here();

    check(ofd, copy);
    EQUAL(waiting, 0);
    struct flock none = range(F_UNLCK, 0, 0);
    EQUAL(fcntl(held, F_OFD_SETLK, &none), 0);
    EQUAL(flock(held_too, LOCK_UN), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    EQUAL(waiting, 2);
    EQUAL(flock(copy, LOCK_UN), 0);
    EXPECT(!flocked("flock", LOCK_EX));
    // Closing any descriptor of the file drops the process's locks.
    close(place);
    FINDS("ranges", F_WRLCK, 0, 0, F_WRLCK, 10, 10);
    close(reader);
    FINDS("ranges", F_WRLCK, 0, 0, F_UNLCK, 0, 0);
    return finish();
}
