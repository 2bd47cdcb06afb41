// A directory for temporary files of the program's own: with a file that processes share by mapping it, a small one that is
// open, a named pipe, a listening socket, and a directory that a child works in. All of it is removed at the end.
#include "check.h"
#include <sys/socket.h>
#include <sys/un.h>

#define PAGE 4096L
#define BYTES (16 * PAGE)

static char top[64];

static const char *in(const char *name) {
    static char path[4][128];
    static int next;
    char *to = path[next++ % 4];
    snprintf(to, 128, "%s/%s", top, name);
    return to;
}

int main(void) {
    // Longer than the kernel's tick: what is as old as the program was not made by it.
    usleep(30000);
    strcpy(top, "/tmp/snapify-scratch-XXXXXX");
    EXPECT(mkdtemp(top));
    printf("%s\n", top);
    umask(0);
    EQUAL(mkdir(in("deep"), 0750), 0);
    EQUAL(mkdir(in("work"), 0710), 0);

    int fd = open(in("deep/shared"), O_CREAT | O_EXCL | O_RDWR, 0640);
    EQUAL(ftruncate(fd, BYTES), 0);
    volatile char *shared = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT(shared != MAP_FAILED);
    close(fd);
    shared[PAGE] = 'a';
    int small = open(in("small"), O_CREAT | O_EXCL | O_RDWR, 0600);
    EQUAL(write(small, "topology", 8), 8);
    EQUAL(mkfifo(in("deep/fifo"), 0620), 0);
    int fifo = open(in("deep/fifo"), O_RDWR | O_NONBLOCK);
    EQUAL(write(fifo, "kept", 4), 4);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, in("socket"));
    EQUAL(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    EQUAL(listen(listener, 4), 0);
    int child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (chdir(in("work"))) _exit(1);
        shared[0] = 'r';
        while (shared[0] != 'g') usleep(1000);
        int made = open("made", O_CREAT | O_EXCL | O_WRONLY, 0600);
        _exit(made < 0 ? 2 : unlink("made") ? 3 : 0);
    }
    while (shared[0] != 'r') usleep(1000);
    pause_here();

    EQUAL(shared[PAGE], 'a');
    EQUAL(shared[2 * PAGE], 0);
    shared[0] = 'g';
    int status;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
    char text[16];
    EQUAL(pread(small, text, sizeof text, 0), 8);
    EXPECT(!memcmp(text, "topology", 8));
    EQUAL(lseek(small, 0, SEEK_CUR), 8);
    EQUAL(read(fifo, text, sizeof text), 4);
    EXPECT(!memcmp(text, "kept", 4));
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    EQUAL(connect(client, (struct sockaddr *)&address, sizeof address), 0);
    // By their names all are found by others, too.
    struct stat stat;
    const char *const names[] = {"deep", "work", "deep/shared", "small", "deep/fifo"};
    const int modes[] = {0750, 0710, 0640, 0600, 0620};
    for (int i = 0; i < 5; i++) {
        EQUAL(lstat(in(names[i]), &stat), 0);
        EQUAL(stat.st_mode & 0777, modes[i]);
    }
    fd = open(in("deep/shared"), O_RDWR);
    volatile char *again = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    again[3 * PAGE] = 'c';
    EQUAL(shared[3 * PAGE], 'c');

    EQUAL(unlink(in("deep/shared")), 0);
    EQUAL(unlink(in("deep/fifo")), 0);
    EQUAL(unlink(in("small")), 0);
    EQUAL(unlink(in("socket")), 0);
    EQUAL(rmdir(in("deep")), 0);
    EQUAL(rmdir(in("work")), 0);
    EQUAL(rmdir(top), 0);
    return finish();
}
