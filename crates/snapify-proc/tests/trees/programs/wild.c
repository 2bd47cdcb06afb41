// Processes that fork, lead sessions, join groups, become subreapers and end, at random: all keep their places.
// The environment's SEED chooses what they do.
#include "../../kinds/programs/check.h"
#include <linux/futex.h>

enum { MOST = 40, ACTS = 150 };
enum { FORK = 1, FORK_SIBLING, LEAD_SESSION, JOIN_GROUP, BE_SUBREAPER, REAP, END, TELL };

// How the first process talks to each one, and what is known of it.
struct process {
    int pid, command, argument, answer, done;
    // As it was before.
    int parent, group, session, subreaper;
    char state;
};

static struct process *processes;
static int count = 1;
static unsigned long long seed = 3;

static int below(int end) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((seed >> 33) % (unsigned)end);
}

static void wait_while(int *word, int value) {
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) syscall(SYS_futex, word, FUTEX_WAIT, value, 0, 0, 0);
}

static void set(int *word, int value) {
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, 0, 0, 0);
}

static int act(int command, int argument);

static void serve(struct process *self) {
    // Whatever happens to the first process, this one does not stay forever.
    alarm(300);
    for (;;) {
        wait_while(&self->command, 0);
        self->answer = act(self->command, self->argument);
        self->command = 0;
        set(&self->done, 1);
    }
}

// Does something in this process.
static int act(int command, int argument) {
    int subreaper = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
    switch (command) {
    case FORK:
    case FORK_SIBLING: {
        long pid = syscall(SYS_clone, SIGCHLD | (command == FORK_SIBLING ? CLONE_PARENT : 0), 0, 0, 0, 0);
        if (pid == 0) serve(&processes[argument]);
        return (int)pid;
    }
    case LEAD_SESSION: return setsid();
    case JOIN_GROUP: return setpgid(0, argument);
    case BE_SUBREAPER: return prctl(PR_SET_CHILD_SUBREAPER, !subreaper);
    case REAP: return waitpid(-1, 0, WNOHANG);
    case END: _exit(argument);
    default: return subreaper;
    }
}

// Has a process do something.
static int ask(int who, int command, int argument) {
    struct process *process = &processes[who];
    if (who == 0) return act(command, argument);
    int pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    process->argument = argument;
    process->done = 0;
    set(&process->command, command);
    if (command == END) {
        // By then its children have another parent.
        struct pollfd end = {.fd = pidfd, .events = POLLIN};
        EQUAL(poll(&end, 1, -1), 1);
    } else {
        wait_while(&process->done, 0);
    }
    close(pidfd);
    return process->answer;
}

// What the kernel says of a process; its state is 0 if its parent has waited for it.
static struct process look_at(int who) {
    struct process now = {.pid = processes[who].pid};
    char path[64], line[512];
    if (!now.pid) return now;
    snprintf(path, sizeof path, "/proc/%d/stat", now.pid);
    FILE *file = fopen(path, "r");
    if (!file) return now;
    if (fgets(line, sizeof line, file))
        EQUAL(sscanf(strrchr(line, ')') + 1, " %c %d %d %d", &now.state, &now.parent, &now.group, &now.session), 4);
    fclose(file);
    if (now.state != 'Z') {
        now.state = 'S';
        now.subreaper = ask(who, TELL, 0);
    }
    return now;
}

static void do_something(void) {
    int who = below(count), other = below(count);
    struct process now = look_at(who);
    if (now.state != 'S') return;
    switch (below(12)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: {
        if (count == MOST) return;
        int command = who > 0 && below(4) == 0 ? FORK_SIBLING : FORK;
        int pid = ask(who, command, count);
        EXPECT(pid > 0);
        processes[count++].pid = pid;
        return;
    }
    case 5:
    case 6: ask(who, LEAD_SESSION, 0); return;
    case 7: {
        struct process its = look_at(other);
        int group = its.state && its.session == now.session ? its.group : 0;
        ask(who, JOIN_GROUP, group);
        return;
    }
    case 8:
        if (who > 0) ask(who, BE_SUBREAPER, 0);
        return;
    case 9: {
        int ended = ask(who, REAP, 0);
        // Others may have its id from now on.
        for (int i = 1; i < count; i++)
            if (processes[i].pid == ended) processes[i].pid = 0;
        return;
    }
    default:
        if (who > 0) ask(who, END, who);
    }
}

int main(void) {
    const char *wanted = getenv("SEED");
    if (wanted) seed = (unsigned long long)atoll(wanted);
    size_t bytes = MOST * sizeof *processes;
    processes = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    processes[0].pid = getpid();
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int i = 0; i < ACTS; i++) do_something();
    for (int i = 0; i < count; i++) processes[i] = look_at(i);

    pause_here();

    for (int i = 0; i < count; i++) {
        struct process *before = &processes[i], now = look_at(i);
        EQUAL(now.state, before->state);
        EQUAL(now.parent, i ? before->parent : now.parent);
        EQUAL(now.group, before->group);
        EQUAL(now.session, before->session);
        EQUAL(now.subreaper, before->subreaper);
    }
    for (int i = 1; i < count; i++)
        if (processes[i].state == 'S') kill(processes[i].pid, SIGKILL);
    while (waitpid(-1, 0, 0) > 0) {}
    for (int i = 1; i < count; i++) EXPECT(!processes[i].pid || kill(processes[i].pid, 0) == -1);
    return finish();
}
