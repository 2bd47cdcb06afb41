// Parents, children, orphans, sessions, groups, and children that have ended.
#include "../../kinds/programs/check.h"

enum { MOST = 32 };

// What each process says of itself when it is asked to.
struct relations {
    int pid, parent, group, session;
};

static struct process {
    int pid;
    struct relations before;
    int ask, answer;
} processes[MOST];
static int count;
static volatile sig_atomic_t child_signals;

static void on_child(int signal) {
    (void)signal;
    child_signals++;
}

static struct relations ours(void) {
    struct relations now = {getpid(), getppid(), getpgrp(), getsid(0)};
    return now;
}

static void serve(int ask, int answer) {
    char byte;
    while (read(ask, &byte, 1) == 1) {
        struct relations now = ours();
        if (write(answer, &now, sizeof now) != sizeof now) _exit(9);
    }
    _exit(0);
}

// Makes a process that does `first` and then answers; the caller (perhaps a process that ends at once) is its parent.
static int start(void (*first)(void)) {
    int ask[2], answer[2];
    EQUAL(pipe(ask), 0);
    EQUAL(pipe(answer), 0);
    int child = fork();
    if (child == 0) {
        close(ask[1]);
        close(answer[0]);
        // Nobody but the one that is asked keeps the other ends.
        for (int i = 0; i < count; i++) {
            close(processes[i].ask);
            close(processes[i].answer);
        }
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (first) first();
        serve(ask[0], answer[1]);
    }
    close(ask[0]);
    close(answer[1]);
    processes[count] = (struct process){.ask = ask[1], .answer = answer[0]};
    count++;
    return child;
}

static void query(struct process *process, struct relations *now) {
    EQUAL(write(process->ask, "?", 1), 1);
    EQUAL(read(process->answer, now, sizeof *now), sizeof *now);
}

static void lead_group(void) { setpgid(0, 0); }
static void lead_session(void) { setsid(); }

// A child in the session and group of its parent, which then leads another session.
static int inner_ask[2], inner_answer[2];
static void leave_a_child_behind(void) {
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(inner_ask[0], inner_answer[1]);
    }
    setsid();
}

// An orphan whose session leader has ended: what a daemon is.
static int daemon_ask[2], daemon_answer[2];
static void start_daemon(void) {
    int middle = fork();
    if (middle == 0) {
        setsid();
        if (fork() == 0) serve(daemon_ask[0], daemon_answer[1]);
        _exit(0);
    }
    EQUAL(waitpid(middle, NULL, 0), middle);
}

// A group whose leader has ended.
static int group_ask[2], group_answer[2];
static void start_group(void) {
    int leader = fork();
    if (leader == 0) {
        setpgid(0, 0);
        pause();
    }
    setpgid(leader, leader);
    int member = fork();
    if (member == 0) {
        setpgid(0, leader);
        char byte = 1;
        if (write(group_answer[1], &byte, 1) != 1) _exit(8);
        serve(group_ask[0], group_answer[1]);
    }
    char byte;
    EQUAL(read(group_answer[0], &byte, 1), 1);
    kill(leader, SIGKILL);
    EQUAL(waitpid(leader, NULL, 0), leader);
}

static void add(int ask, int answer) {
    processes[count++] = (struct process){.ask = ask, .answer = answer};
}

int main(void) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pipe(inner_ask), pipe(inner_answer);
    pipe(daemon_ask), pipe(daemon_answer);
    pipe(group_ask), pipe(group_answer);

    start(NULL);
    start(lead_group);
    start(lead_session);
    start(leave_a_child_behind);
    start_daemon();
    start_group();
    add(inner_ask[1], inner_answer[0]);
    add(daemon_ask[1], daemon_answer[0]);
    add(group_ask[1], group_answer[0]);
    for (int i = 0; i < count; i++) query(&processes[i], &processes[i].before);
    struct relations self = ours();

    siginfo_t info;
    // Ended, and not waited for; with the signal of their ends already taken.
    int exited = fork();
    if (exited == 0) _exit(42);
    int killed = fork();
    if (killed == 0) pause();
    kill(killed, SIGUSR2);
    int shot = fork();
    if (shot == 0) pause();
    kill(shot, SIGKILL);
    EQUAL(waitid(P_PID, exited, &info, WEXITED | WNOWAIT), 0);
    EQUAL(waitid(P_PID, killed, &info, WEXITED | WNOWAIT), 0);
    EQUAL(waitid(P_PID, shot, &info, WEXITED | WNOWAIT), 0);
    struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &action, NULL);

    pause_here();

    EQUAL(child_signals, 0);
    struct relations now = ours();
    EQUAL(now.pid, self.pid);
    if (self.group == self.pid) EQUAL(now.group, self.group);
    for (int i = 0; i < count; i++) {
        struct relations *before = &processes[i].before;
        query(&processes[i], &now);
        EQUAL(now.pid, before->pid);
        EQUAL(now.parent, before->parent);
        // What lies outside of the tree may be another after a restart.
        if (before->group != self.group) EQUAL(now.group, before->group);
        else EQUAL(now.group, getpgrp());
        if (before->session != self.session) EQUAL(now.session, before->session);
        else EQUAL(now.session, getsid(0));
    }
    int status;
    EQUAL(waitpid(exited, &status, WNOHANG), exited);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    EQUAL(waitpid(killed, &status, WNOHANG), killed);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR2);
    EQUAL(waitpid(shot, &status, WNOHANG), shot);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (int i = 0; i < count; i++) kill(processes[i].before.pid, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) {}
    return finish();
}
