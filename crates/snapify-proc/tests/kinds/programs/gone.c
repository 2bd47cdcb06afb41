// What has no name any more is still itself: one removed directory that is open twice and worked in; a removed file with its permissions and times; a
// file in memory that can be executed as long as nobody has opened it for writing.
#include "check.h"

static int directories[2], file, memory;

static void set_up(void) {
    char directory[] = "gone-XXXXXX";
    EXPECT(mkdtemp(directory));
    directories[0] = open(directory, O_RDONLY | O_DIRECTORY);
    directories[1] = open(directory, O_PATH | O_DIRECTORY);
    EQUAL(chmod(directory, 0710), 0);
    EQUAL(chdir(directory), 0);
    char path[PATH_MAX];
    EXPECT(getcwd(path, sizeof path));
    EQUAL(rmdir(path), 0);

    file = open("/tmp", O_RDWR | O_TMPFILE, 0600);
    EXPECT(file >= 0);
    EQUAL(write(file, "content", 7), 7);
    EQUAL(fchmod(file, 06640), 0);
    struct timespec times[2] = {{1000000, 5}, {123456789, 987654321}};
    EQUAL(futimens(file, times), 0);

    memory = memfd_create("program", 0);
    EXPECT(memory >= 0);
    EQUAL(write(memory, "#!/bin/true\n", 12), 12);
}

static void execute(void) {
    int child = fork(), status;
    if (child == 0) {
        char *none[] = {"true", 0};
        fexecve(memory, none, none + 1);
        _exit(errno);
    }
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
}

static void look(void) {
    struct stat here, there, now;
    EQUAL(stat(".", &here), 0);
    for (int n = 0; n < 2; n++) {
        EQUAL(fstat(directories[n], &there), 0);
        EXPECT(here.st_ino == there.st_ino && here.st_dev == there.st_dev);
        EQUAL(there.st_nlink, 0);
        EQUAL(there.st_mode & 07777, 0710);
    }
    EQUAL(fstat(file, &now), 0);
    EQUAL(now.st_mode & 07777, 06640);
    EQUAL(now.st_mtim.tv_sec, 123456789);
    EQUAL(now.st_mtim.tv_nsec, 987654321);
    EQUAL(now.st_atim.tv_sec, 1000000);
    char text[8] = "";
    EQUAL(pread(file, text, 7, 0), 7);
    EXPECT(!strcmp(text, "content"));
    EQUAL(lseek(memory, 0, SEEK_CUR), 12);
    execute();
}

int main(void) {
    set_up();
    execute();
    pause_here();
    look();
    return finish();
}
