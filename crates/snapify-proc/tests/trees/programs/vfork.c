// Processes that wait in vfork(2) until their children, which have the same memory, call exec or end: they go on waiting, are told of no
// signal before that, and return with the registers they had.
#include "../../kinds/programs/check.h"
#include <spawn.h>

static int ready[2], go[2];
static volatile int told_by_child;
static volatile sig_atomic_t caught;
static char stack[65536] __attribute__((aligned(16)));
static int alternate_known;

static void note(int signal) {
    (void)signal;
    caught++;
}

// What the child does: in the memory, and in some cases on the stack, of its parent.
__attribute__((noinline)) static void await(void) {
    char byte = 'r', on_stack[4096];
    stack_t alternate;
    memset(on_stack, 0x5a, sizeof on_stack);
    alternate_known = sigaltstack(0, &alternate) == 0 && alternate.ss_sp == stack && alternate.ss_flags == 0;
    told_by_child = getpid();
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    if (read(go[0], &byte, 1) != 1) _exit(2);
    for (size_t i = 0; i < sizeof on_stack; i++)
        if (((volatile char *)on_stack)[i] != 0x5a) _exit(3);
    stack_t now;
    alternate_known &= sigaltstack(0, &now) == 0 && now.ss_sp == alternate.ss_sp && now.ss_flags == 0;
    // A handler of the parent has not run yet.
    if (caught) _exit(4);
    told_by_child = -getpid();
}

static int ended_with(int child, int code) {
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 0;
    return WEXITSTATUS(status) == code;
}

// vfork(2) as the C library has it, whose child becomes another program.
static int by_vfork(void) {
    struct sigaction action = {.sa_handler = note};
    EQUAL(sigaction(SIGUSR1, &action, 0), 0);
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    EQUAL(sigaltstack(&alternate, 0), 0);
    int child = vfork();
    if (child == 0) {
        await();
        execl("/bin/sh", "sh", "-c", "exit 17", (char *)0);
        _exit(5);
    }
    EQUAL(told_by_child, -child);
    EXPECT(alternate_known);
    EQUAL(caught, 1);
    EXPECT(ended_with(child, 17));
    return failures;
}

static void end_as_child(void) {
    await();
    // A thread id of its own does not make it another process.
    kill(getpid(), SIGTERM);
    _exit(6);
}

// The call itself, with a stack for the child, and a known value in each register.
static int by_clone(void) {
    static char child_stack[65536] __attribute__((aligned(16)));
    static unsigned long before[15], after[15];
    for (int i = 0; i < 15; i++) before[i] = 0x1111111111111111UL * (i + 1);
    // rdi, rsi, rdx, r10, r8: flags, stack, and three addresses that these flags leave alone.
    before[5] = CLONE_VM | CLONE_VFORK | SIGCHLD;
    before[4] = (unsigned long)(child_stack + sizeof child_stack);
    long child;
    __asm__ volatile(
        "push %%rbx; push %%rbp\n\t"
        "lea %[before], %%rax\n\t"
        "mov 8(%%rax), %%rbx; mov 24(%%rax), %%rdx; mov 32(%%rax), %%rsi; mov 40(%%rax), %%rdi\n\t"
        "mov 48(%%rax), %%rbp; mov 56(%%rax), %%r8; mov 64(%%rax), %%r9; mov 72(%%rax), %%r10\n\t"
        "mov 88(%%rax), %%r12; mov 96(%%rax), %%r13; mov 104(%%rax), %%r14; mov 112(%%rax), %%r15\n\t"
        "mov $56, %%eax; syscall\n\t"
        "test %%rax, %%rax; jz 1f\n\t"
        "lea %[after], %%rcx\n\t"
        "mov %%rbx, 8(%%rcx); mov %%rdx, 24(%%rcx); mov %%rsi, 32(%%rcx); mov %%rdi, 40(%%rcx)\n\t"
        "mov %%rbp, 48(%%rcx); mov %%r8, 56(%%rcx); mov %%r9, 64(%%rcx); mov %%r10, 72(%%rcx)\n\t"
        "mov %%r12, 88(%%rcx); mov %%r13, 96(%%rcx); mov %%r14, 104(%%rcx); mov %%r15, 112(%%rcx)\n\t"
        "jmp 2f\n"
        "1: xor %%ebp, %%ebp; call end_as_child_entry\n"
        "2: pop %%rbp; pop %%rbx"
        : "=a"(child), [after] "=m"(after)
        : [before] "m"(before)
        : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
    static const int kept[] = {1, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (after[kept[i]] != before[kept[i]]) {
            printf("register %d is %#lx, not %#lx\n", kept[i], after[kept[i]], before[kept[i]]);
            failures++;
        }
    EQUAL(told_by_child, -child);
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    return failures;
}

void end_as_child_entry(void) {
    end_as_child();
}

// The C library's, whose child waits for somebody to write to a named pipe.
static int by_spawn(void) {
    posix_spawn_file_actions_t actions;
    int child;
    char *arguments[] = {"sh", "-c", "read line; test \"$line\" = text && exit 18", 0};
    EQUAL(posix_spawn_file_actions_init(&actions), 0);
    EQUAL(posix_spawn_file_actions_addopen(&actions, 0, "fifo", O_RDONLY, 0), 0);
    EQUAL(posix_spawn(&child, "/bin/sh", &actions, 0, arguments, environ), 0);
    EXPECT(ended_with(child, 18));
    return failures;
}

static int start(int way(void)) {
    int child = fork();
    if (child == 0) {
        close(go[1]);
        exit(way() ? 9 : 0);
    }
    return child;
}

static int has_child(int pid) {
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    FILE *file = fopen(path, "r");
    if (file && !fgets(line, sizeof line, file)) line[0] = 0;
    if (file) fclose(file);
    return line[0] != 0;
}

int main(void) {
    char byte;
    EQUAL(pipe(ready), 0);
    EQUAL(pipe(go), 0);
    unlink("fifo");
    EQUAL(mkfifo("fifo", 0600), 0);
    int waiters[] = {start(by_vfork), start(by_clone), start(by_spawn)};
    for (int i = 0; i < 2; i++) EQUAL(read(ready[0], &byte, 1), 1);
    while (!has_child(waiters[2])) usleep(1000);
    EQUAL(kill(waiters[0], SIGUSR1), 0);
    pause_here();

    for (int i = 0; i < 3; i++) EQUAL(waitpid(waiters[i], 0, WNOHANG), 0);
    EQUAL(write(go[1], "gg", 2), 2);
    int fifo = open("fifo", O_WRONLY);
    EQUAL(write(fifo, "text\n", 5), 5);
    for (int i = 0; i < 3; i++) EXPECT(ended_with(waiters[i], 0));
    return finish();
}
