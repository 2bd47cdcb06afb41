// What processes share beside pipes: memory, files, and by clone flags whole tables.
#include "../../kinds/programs/check.h"
#include <linux/sched.h>

struct shared {
    volatile int turn;
    volatile long counter;
    char text[64];
};

static int clone_with(unsigned long flags) {
    struct clone_args args = {.flags = flags, .exit_signal = SIGCHLD};
    return (int)syscall(SYS_clone3, &args, sizeof args);
}

static volatile int in_common;
static char stack[2][65536];

static int same_memory(void *argument) {
    (void)argument;
    while (in_common == 0) usleep(1000);
    in_common = 2;
    _exit(7);
}

int main(void) {
    struct shared *shared = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int memory = memfd_create("common", 0);
    EQUAL(ftruncate(memory, 8192), 0);
    int file = open("common", O_RDWR | O_CREAT | O_TRUNC, 0600);
    EQUAL(write(file, "0123456789", 10), 10);
    EQUAL(lseek(file, 2, SEEK_SET), 2);
    EQUAL(flock(file, LOCK_EX), 0);

    // A forked child: the same descriptions, the same memory, and a part of it that the parent has not mapped any more.
    int forked = fork();
    if (forked == 0) {
        char *other = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        strcpy(other + 4096, "child");
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 100, .l_len = 10};
        if (fcntl(file, F_SETLK, &lock) != 0) _exit(4);
        strcpy(shared->text + 8192, "behind");
        shared->turn = 1;
        while (shared->turn != 2) usleep(1000);
        char byte;
        if (read(file, &byte, 1) != 1 || byte != '2') _exit(5);
        if (strcmp(other, "parent") != 0 || strcmp(other + 4096, "child") != 0) _exit(6);
        if (strcmp(shared->text + 8192, "behind") != 0) _exit(7);
        shared->counter += 10;
        shared->turn = 3;
        _exit(0);
    }
    while (shared->turn != 1) usleep(1000);
    EQUAL(munmap((char *)shared + 8192, 4096), 0);
    EQUAL(pwrite(memory, "parent", 7, 0), 7);

    // One that shares the table of descriptors, and one that shares the directory.
    volatile int *gate = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int with_files = clone_with(CLONE_FILES);
    if (with_files == 0) {
        while (gate[0] == 0) usleep(1000);
        int made = open("/dev/null", O_RDWR);
        gate[1] = made;
        while (gate[0] != 2) usleep(1000);
        _exit(fcntl(made, F_GETFD) == -1 ? 0 : 1);
    }
    int with_directory = clone_with(CLONE_FS);
    if (with_directory == 0) {
        while (gate[0] == 0) usleep(1000);
        gate[2] = chdir("/") == 0;
        while (gate[0] != 2) usleep(1000);
        _exit(0);
    }
    // Two that share the memory, one with the handlers of signals too; neither is a thread.
    int with_memory = clone(same_memory, stack[0] + sizeof stack[0], CLONE_VM | SIGCHLD, NULL);
    EXPECT(with_memory > 0);
    int with_handlers = clone(same_memory, stack[1] + sizeof stack[1], CLONE_VM | CLONE_SIGHAND | CLONE_FILES | CLONE_FS | SIGCHLD, NULL);
    EXPECT(with_handlers > 0);

    pause_here();

    shared->turn = 2;
    int status;
    EQUAL(waitpid(forked, &status, 0), forked);
    EQUAL(status, 0);
    EQUAL(shared->turn, 3);
    EQUAL(shared->counter, 10);
    EQUAL(lseek(file, 0, SEEK_CUR), 3);
    int again = open("common", O_RDWR);
    EXPECT(flock(again, LOCK_EX | LOCK_NB) == -1);
    gate[0] = 1;
    while (gate[1] == 0 || gate[2] == 0) usleep(1000);
    EXPECT(fcntl(gate[1], F_GETFD) == 0);
    EQUAL(close(gate[1]), 0);
    char directory[PATH_MAX];
    EXPECT(getcwd(directory, sizeof directory) && strcmp(directory, "/") == 0);
    gate[0] = 2;
    EQUAL(waitpid(with_files, &status, 0), with_files);
    EQUAL(status, 0);
    EQUAL(waitpid(with_directory, &status, 0), with_directory);
    EQUAL(status, 0);
    in_common = 1;
    EQUAL(waitpid(with_memory, &status, 0), with_memory);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    EQUAL(waitpid(with_handlers, &status, 0), with_handlers);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    EQUAL(in_common, 2);
    return finish();
}
