/* Holds MEBIBYTES of incompressible memory, says "ready", then waits for lines on its standard input: "check" verifies
 * the memory and answers "whole" or "damaged"; the end of input ends it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int main(int argc, char **argv) {
    const size_t words = (argc > 1 ? strtoull(argv[1], 0, 10) : 64) << 17;
    uint64_t *memory = malloc(words * sizeof *memory);
    for (size_t i = 0; i < words; i++) memory[i] = mix(i);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "check\n") != 0) continue;
        size_t wrong = 0;
        for (size_t i = 0; i < words; i++) wrong += memory[i] != mix(i);
        puts(wrong ? "damaged" : "whole");
        fflush(stdout);
    }
    return 0;
}
