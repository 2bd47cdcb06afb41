// Files and directories of its own that nobody may open any more, since their modes have changed after they were opened. A program that may
// not open them has them all the same.
#include "check.h"

#define PAGE 4096L

int main(void) {
    char top[] = "modes-XXXXXX";
    EXPECT(mkdtemp(top));
    EQUAL(chdir(top), 0);
    EQUAL(mkdir("directory", 0700), 0);
    EQUAL(mkdir("work", 0700), 0);
    int file = open("file", O_RDWR | O_CREAT | O_EXCL, 0600);
    EQUAL(write(file, "content", 7), 7);
    int mapped = open("mapped", O_RDWR | O_CREAT | O_EXCL, 0600);
    EQUAL(ftruncate(mapped, PAGE), 0);
    char *shared = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    char *private = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, mapped, 0);
    EXPECT(shared != MAP_FAILED && private != MAP_FAILED);
    strcpy(shared, "shared");
    close(mapped);
    EQUAL(mkfifo("fifo", 0600), 0);
    int fifo = open("fifo", O_RDWR | O_NONBLOCK);
    EQUAL(write(fifo, "kept", 4), 4);
    int directory = open("directory", O_RDONLY | O_DIRECTORY);
    EQUAL(fchmod(file, 0), 0);
    EQUAL(chmod("mapped", 0), 0);
    EQUAL(chmod("fifo", 0), 0);
    EQUAL(chmod("directory", 0), 0);
    EQUAL(chdir("work"), 0);
    int work = open(".", O_RDONLY | O_DIRECTORY);
    EQUAL(fchmod(work, 0), 0);
    pause_here();

    struct stat stat;
    EQUAL(fstat(file, &stat), 0);
    EQUAL(stat.st_mode & 07777, 0);
    EQUAL(lseek(file, 0, SEEK_CUR), 7);
    char text[8] = "";
    EQUAL(pread(file, text, 7, 0), 7);
    EXPECT(!strcmp(text, "content"));
    EQUAL(write(file, "s", 1), 1);
    EXPECT(!strcmp(shared, "shared") && !strcmp(private, "shared"));
    EQUAL(fstat(directory, &stat), 0);
    EQUAL(stat.st_mode & 07777, 0);
    EQUAL(read(fifo, text, sizeof text), 4);
    EQUAL(fchmod(work, 0700), 0);
    EQUAL(close(open("made", O_CREAT | O_WRONLY, 0600)), 0);
    EQUAL(unlink("made"), 0);
    EQUAL(fchmod(directory, 0700), 0);
    EQUAL(chdir(".."), 0);
    EQUAL(unlink("file"), 0);
    EQUAL(unlink("mapped"), 0);
    EQUAL(unlink("fifo"), 0);
    EQUAL(rmdir("directory"), 0);
    EQUAL(rmdir("work"), 0);
    EQUAL(chdir(".."), 0);
    EQUAL(rmdir(top), 0);
    return finish();
}
