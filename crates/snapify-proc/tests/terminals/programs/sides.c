// Both sides of pseudo-terminals: names, settings, modes, and what is on its way.
#include "../../kinds/programs/check.h"
#include <sys/ioctl.h>
#include <termios.h>

struct pair {
    int master, side;
    char name[32];
};

static struct pair open_pair(void) {
    struct pair p;
    p.master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    EXPECT(p.master >= 0);
    EQUAL(grantpt(p.master), 0);
    EQUAL(unlockpt(p.master), 0);
    EQUAL(ptsname_r(p.master, p.name, sizeof p.name), 0);
    p.side = open(p.name, O_RDWR | O_NOCTTY);
    EXPECT(p.side >= 0);
    return p;
}

static void make_raw(struct pair p) {
    struct termios t;
    EQUAL(tcgetattr(p.side, &t), 0);
    cfmakeraw(&t);
    EQUAL(tcsetattr(p.side, TCSANOW, &t), 0);
}

static void set_echo(struct pair p, int on) {
    struct termios t;
    EQUAL(tcgetattr(p.side, &t), 0);
    if (on) t.c_lflag |= ECHO;
    else t.c_lflag &= ~ECHO;
    EQUAL(tcsetattr(p.side, TCSANOW, &t), 0);
}

static void put(int fd, const char *text, size_t n) { EQUAL(write(fd, text, n), n); }

static void gets_bytes(int fd, const char *text, size_t n) {
    char got[8192];
    size_t have = 0;
    while (have < n) {
        ssize_t r = read(fd, got + have, sizeof got - have);
        if (r <= 0) break;
        have += r;
    }
    EQUAL(have, n);
    EXPECT(memcmp(got, text, n) == 0);
}

// One read.
static void gets_line(int fd, const char *line, ssize_t n) {
    char got[512];
    EQUAL(read(fd, got, sizeof got), n);
    EXPECT(memcmp(got, line, n) == 0);
}

static int ready(int fd, int events) {
    struct pollfd p = {fd, events, 0};
    EXPECT(poll(&p, 1, 0) >= 0);
    return p.revents;
}

static void await_input(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    EQUAL(poll(&p, 1, 10000), 1);
}

static void await_suspension(int fd, int suspended) {
    time_t end = time(NULL) + 10;
    while (((ready(fd, POLLOUT) & POLLOUT) == 0) != suspended && time(NULL) < end) sched_yield();
    EQUAL((ready(fd, POLLOUT) & POLLOUT) == 0, suspended);
}

static void is_named(struct pair p) {
    char name[64], link[64];
    EQUAL(ptsname_r(p.master, name, sizeof name), 0);
    EXPECT(strcmp(name, p.name) == 0);
    EQUAL(ttyname_r(p.side, name, sizeof name), 0);
    EXPECT(strcmp(name, p.name) == 0);
    snprintf(link, sizeof link, "/proc/self/fd/%d", p.side);
    ssize_t n = readlink(link, name, sizeof name - 1);
    EXPECT(n > 0 && strncmp(name, p.name, n) == 0);
}

int main(void) {
    // Numbers with gaps.
    struct pair gap = open_pair();
    struct pair lines = open_pair();
    set_echo(lines, 0);
    put(lines.master, "one\rtwo\004\004hal", 12);
    // The kernel passes it on in its own time, and tells nobody when it has.
    usleep(200000);
    set_echo(lines, 1);
    put(lines.side, "out\nput", 7);
    struct winsize size = {33, 101, 7, 9};
    EQUAL(ioctl(lines.master, TIOCSWINSZ, &size), 0);

    struct pair raw = open_pair();
    make_raw(raw);
    char every[256];
    for (int i = 0; i < 256; i++) every[i] = i;
    put(raw.master, every, sizeof every);
    put(raw.side, every, sizeof every);
    int on = 1, off = 0;
    EQUAL(ioctl(raw.master, TIOCPKT, &on), 0);
    EQUAL(fcntl(raw.master, F_SETFL, O_NONBLOCK), 0);
    int reader = open(raw.name, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    EXPECT(reader >= 0);
    EQUAL(ioctl(raw.side, TIOCEXCL), 0);

    struct pair closed = open_pair();
    put(closed.side, "last words", 10);
    close(closed.side);

    struct pair orphan = open_pair();
    close(orphan.master);

    int locked = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    EXPECT(locked >= 0);

    struct pair suspended = open_pair();
    put(suspended.master, "\023", 1);
    await_suspension(suspended.side, 1);
    struct pair called = open_pair();
    EQUAL(tcflow(called.side, TCOOFF), 0);

    struct pair full = open_pair();
    make_raw(full);
    EQUAL(fcntl(full.master, F_SETFL, O_NONBLOCK), 0);
    size_t filled = 0;
    char many[1000];
    memset(many, 'm', sizeof many);
    for (ssize_t n; (n = write(full.master, many, sizeof many)) > 0;) filled += n;
    close(gap.master);
    close(gap.side);

    struct termios before, after;
    EQUAL(tcgetattr(lines.side, &before), 0);
    before.c_cc[VINTR] = 7;
    before.c_oflag |= ONLRET;
    cfsetspeed(&before, B9600);
    EQUAL(tcsetattr(lines.side, TCSANOW, &before), 0);

    pause_here();

    is_named(lines);
    EQUAL(tcgetattr(lines.side, &after), 0);
    EXPECT(memcmp(&before, &after, sizeof before) == 0);
    struct winsize got;
    EQUAL(ioctl(lines.side, TIOCGWINSZ, &got), 0);
    EXPECT(memcmp(&size, &got, sizeof size) == 0);
    gets_line(lines.side, "one\n", 4);
    gets_line(lines.side, "two", 3);
    gets_line(lines.side, "", 0);
    EQUAL(ready(lines.side, POLLIN), 0);
    gets_bytes(lines.master, "out\r\nput", 8);
    EQUAL(ready(lines.master, POLLIN), 0);
    set_echo(lines, 0);
    put(lines.master, "f\r", 2);
    await_input(lines.side);
    gets_line(lines.side, "half\n", 5);

    is_named(raw);
    EQUAL(ioctl(raw.side, TIOCGEXCL, &on), 0);
    EQUAL(on, 1);
    EQUAL(ioctl(raw.side, TIOCNXCL), 0);
    EQUAL(fcntl(raw.master, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    EQUAL(fcntl(raw.side, F_GETFL) & O_NONBLOCK, 0);
    EQUAL(fcntl(reader, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDONLY | O_NONBLOCK);
    char packet[300];
    EQUAL(read(raw.master, packet, sizeof packet), 257);
    EQUAL(packet[0], TIOCPKT_DATA);
    EXPECT(memcmp(packet + 1, every, 256) == 0);
    EQUAL(read(raw.master, packet, sizeof packet), -1);
    EQUAL(ioctl(raw.master, TIOCPKT, &off), 0);
    gets_bytes(reader, every, 256);
    EQUAL(read(reader, packet, sizeof packet), -1);

    EXPECT(!(ready(locked, POLLIN) & POLLHUP));
    EXPECT(ready(closed.master, POLLIN) & POLLHUP);
    gets_bytes(closed.master, "last words", 10);
    EQUAL(read(closed.master, packet, sizeof packet), -1);
    closed.side = open(closed.name, O_RDWR | O_NOCTTY);
    EXPECT(closed.side >= 0);

    EQUAL(read(orphan.side, packet, sizeof packet), 0);
    EQUAL(write(orphan.side, packet, 1), -1);
    EXPECT(isatty(orphan.side) == 0);

    char name[64];
    EQUAL(ptsname_r(locked, name, sizeof name), 0);
    EQUAL(open(name, O_RDWR | O_NOCTTY), -1);
    EQUAL(unlockpt(locked), 0);
    EXPECT(open(name, O_RDWR | O_NOCTTY) >= 0);

    EXPECT(!(ready(suspended.side, POLLOUT) & POLLOUT));
    put(suspended.master, "\021", 1);
    await_suspension(suspended.side, 0);
    EXPECT(!(ready(called.side, POLLOUT) & POLLOUT));
    EQUAL(tcflow(called.side, TCOON), 0);
    await_suspension(called.side, 0);

    EQUAL(fcntl(full.side, F_SETFL, O_NONBLOCK), 0);
    size_t drained = 0;
    while (drained < filled) {
        struct pollfd p = {full.side, POLLIN, 0};
        if (poll(&p, 1, 5000) != 1) break;
        ssize_t n = read(full.side, many, sizeof many);
        if (n <= 0) break;
        drained += n;
    }
    EQUAL(drained, filled);

    // A new one takes the lowest number that is free.
    struct pair fresh = open_pair();
    is_named(fresh);
    return finish();
}
