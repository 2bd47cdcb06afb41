// Holds objects that are an agent's: a mapped file at descriptor 50, another at 51.
#include "../../kinds/programs/check.h"

int main(void) {
    int store = open("store", O_RDWR | O_CREAT | O_TRUNC, 0600), control = open("control", O_RDWR | O_CREAT | O_TRUNC, 0600);
    EQUAL(ftruncate(store, 1 << 20), 0);
    EQUAL(dup2(store, 50), 50);
    EQUAL(dup2(control, 51), 51);
    close(store);
    close(control);
    char *at = mmap((void *)0x200000000000, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE, 50, 0);
    EXPECT(at == (void *)0x200000000000);
    strcpy(at, "this is in");
    strcat(at, " the store");
    // A part of it may have another protection, and is then a mapping of its own.
    mprotect(at + 4096, 4096, PROT_READ);
    pause_here();
    EXPECT(!strcmp(at, "another one"));
    *at = 'A';
    char c[8] = {0};
    EQUAL(pread(50, c, 7, 0), 7);
    EXPECT(!strcmp(c, "Another"));
    EQUAL(pread(51, c, 7, 0), 5);
    EXPECT(!strncmp(c, "hello", 5));
    return finish();
}
