// Processes whose first thread has ended while others go on: the one that is asked for, and a child of it, which has a child
// in turn that knows it as its parent.
#include "../../kinds/programs/check.h"
#include <sys/syscall.h>

static int to_child[2], from_child[2];
static char *private_memory;
static int leader_tid;

static int threads_of(int pid) {
    char path[64], line[128];
    int count = -1;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "Threads: %d", &count);
    if (file) fclose(file);
    return count;
}

static char state_of(int pid) {
    char path[64], line[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file && fgets(line, sizeof line, file)) sscanf(strrchr(line, ')') + 1, " %c", &state);
    if (file) fclose(file);
    return state;
}

// A thread of the child, whose first thread ends.
static void *child_goes_on(void *unused) {
    (void)unused;
    while (state_of(getpid()) != 'Z') usleep(1000);
    int grandchild = fork();
    if (grandchild == 0) {
        int parent = getppid();
        char byte = 'r';
        if (write(from_child[1], &byte, 1) != 1 || read(to_child[0], &byte, 1) != 1) _exit(1);
        _exit(getppid() == parent && byte == 'x' ? 0 : 2);
    }
    int status;
    char answer = waitpid(grandchild, &status, 0) == grandchild && status == 0 ? 'g' : 'b';
    if (write(from_child[1], &answer, 1) != 1) _exit(1);
    if (read(to_child[0], &answer, 1) != 1) _exit(1);
    // The last thread to end tells how the process has ended.
    syscall(SYS_exit, 5);
    return 0;
}

static void *goes_on(void *argument) {
    int child = *(int *)argument;
    pthread_setname_np(pthread_self(), "other");
    while (state_of(getpid()) != 'Z') usleep(1000);
    char byte;
    EQUAL(read(from_child[0], &byte, 1), 1);
    pause_here();

    EQUAL(getpid(), leader_tid);
    EXPECT(syscall(SYS_gettid) != getpid());
    while (state_of(getpid()) != 'Z') usleep(1000);
    EQUAL(threads_of(getpid()), 2);
    EXPECT(!strcmp(private_memory, "kept"));
    char name[32];
    EQUAL(pthread_getname_np(pthread_self(), name, sizeof name), 0);
    EXPECT(!strcmp(name, "other"));
    while (state_of(child) != 'Z') usleep(1000);
    EQUAL(write(to_child[1], "x", 1), 1);
    EQUAL(read(from_child[0], &byte, 1), 1);
    EQUAL(byte, 'g');
    EQUAL(write(to_child[1], "x", 1), 1);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status));
    EQUAL(WEXITSTATUS(status), 5);
    exit(finish());
}

int main(void) {
    EQUAL(pipe(to_child), 0);
    EQUAL(pipe(from_child), 0);
    private_memory = strdup("kept");
    leader_tid = getpid();
    int child = fork();
    pthread_t thread;
    if (child == 0) {
        pthread_create(&thread, 0, child_goes_on, 0);
        syscall(SYS_exit, 3);
    }
    static int known;
    known = child;
    EQUAL(pthread_create(&thread, 0, goes_on, &known), 0);
    pthread_exit(0);
}
