/* Loads the image named by its argument, as an offload process does, and has it check itself. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *image = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*check)(void) = image ? (int (*)(void))dlsym(image, "check") : NULL;
    if (!check) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int line = check();
    if (line) fprintf(stderr, "image.c:%d\n", line);
    return line != 0;
}
